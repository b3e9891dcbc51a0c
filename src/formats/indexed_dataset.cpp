#include "formats/indexed_dataset.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/text.h"
#include "deepspeed/error.h"

static_assert(std::endian::native == std::endian::little, "tokens are read as they lie in the file");

namespace deepspeed::formats {
namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // with its own end: nine bytes
constexpr size_t kMagicSize = 9;
constexpr size_t kHeaderSize = 34;

[[noreturn]] void bad(const std::string& path, const std::string& text) {
  throw Error(ErrorCode::kDataFormat, "dataset", base::str(path, ": ", text));
}

[[noreturn]] void misused(const std::string& prefix, const std::string& text) {
  throw Error(ErrorCode::kUsage, "dataset", base::str(prefix, ": ", text));
}

// Nothing in the index is aligned.
template <typename T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// Calls `body` with a value of the element's C++ type.
template <typename Body>
decltype(auto) with_type(TokenType type, Body&& body) {
  switch (type) {
    case TokenType::kU8:
      return body(uint8_t{});
    case TokenType::kI8:
      return body(int8_t{});
    case TokenType::kI16:
      return body(int16_t{});
    case TokenType::kI32:
      return body(int32_t{});
    case TokenType::kI64:
      return body(int64_t{});
    case TokenType::kU16:
      return body(uint16_t{});
    case TokenType::kU32:
      return body(uint32_t{});
    case TokenType::kU64:
      break;
  }
  return body(uint64_t{});
}

// The number that stands in the file. Unsigned 16 bit: Megatron-LM's, as its files are the common ones.
uint8_t code_of(TokenType type) {
  switch (type) {
    case TokenType::kU16:
      return 8;
    case TokenType::kU32:
      return 7;
    case TokenType::kU64:
      return 8;
    default:
      return static_cast<uint8_t>(static_cast<int>(type) + 1);
  }
}

// What a number means in a file whose tokens are `width` bytes each (0: not known, as there are none).
TokenType type_of(uint8_t code, uint64_t width, const std::string& path) {
  if (code >= 1 && code <= 5) return static_cast<TokenType>(code - 1);
  if ((code == 6 || code == 8) && (width == 2 || width == 0)) return TokenType::kU16;
  if (code == 7 && (width == 4 || width == 0)) return TokenType::kU32;
  if (code == 8 && width == 8) return TokenType::kU64;
  bad(path, base::str("element type: got ", int{code}, width > 0 ? base::str(" with ", width, " bytes a token") : "",
                      ", allowed 1 to 5, 6 with 2 bytes, 7 with 4, 8 with 2 or 8 (whole numbers)"));
}

}  // namespace

size_t token_size(TokenType type) {
  return with_type(type, [](auto value) { return sizeof(value); });
}

bool IndexedDataset::exists(const std::string& prefix) {
  return std::filesystem::is_regular_file(prefix + ".idx") && std::filesystem::is_regular_file(prefix + ".bin");
}

IndexedDataset::IndexedDataset(const std::string& prefix) : prefix_(prefix), index_(prefix + ".idx"), data_(prefix + ".bin") {
  const auto bytes = index_.bytes();
  if (bytes.size() < kHeaderSize) bad(index_.path(), base::str("size: got ", bytes.size(), " bytes, allowed ", kHeaderSize, " or more"));
  if (std::memcmp(bytes.data(), kMagic, kMagicSize) != 0)
    bad(index_.path(), "first bytes: got others, allowed MMIDIDX (is this a .idx file?)");
  const uint64_t version = load<uint64_t>(bytes, 9);
  if (version != 1) bad(index_.path(), base::str("version: got ", version, ", allowed 1"));
  const uint64_t sequences = load<uint64_t>(bytes, 18);
  const uint64_t marks = load<uint64_t>(bytes, 26);
  const uint64_t rest = bytes.size() - kHeaderSize;
  // Counts are compared with the size before they are multiplied.
  if (sequences > rest / 12 || marks > rest / 8 || sequences * 12 + marks * 8 != rest) {
    bad(index_.path(), base::str("size: got ", bytes.size(), " bytes, allowed ", kHeaderSize, " + 12 * ", sequences, " sequences + 8 * ",
                                 marks, " document marks"));
  }
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = marks > 0 ? static_cast<int64_t>(marks) - 1 : 0;

  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = length_at(i);
    if (length < 0) bad(index_.path(), base::str("length of sequence ", i, ": got ", length, ", allowed 0 or more"));
    tokens_ += length;
  }
  const uint64_t all = data_.bytes().size();
  const uint64_t total = static_cast<uint64_t>(tokens_);
  type_ = type_of(load<uint8_t>(bytes, 17), total > 0 && all % total == 0 ? all / total : 0, index_.path());

  const uint64_t width = token_size(type_);
  uint64_t expected = 0;  // where the next sequence starts when all lie back to back
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = length_at(i);
    const int64_t pointer = pointer_at(i);
    const uint64_t bytes_needed = static_cast<uint64_t>(length) * width;
    if (pointer < 0 || bytes_needed > data_.bytes().size() || static_cast<uint64_t>(pointer) > data_.bytes().size() - bytes_needed) {
      bad(index_.path(), base::str("place of sequence ", i, ": got byte ", pointer, " and ", length, " tokens, allowed within the ",
                                   data_.bytes().size(), " bytes of ", data_.path()));
    }
    contiguous_ = contiguous_ && static_cast<uint64_t>(pointer) == expected;
    expected = static_cast<uint64_t>(pointer) + bytes_needed;
  }
  check_marks();
}

void IndexedDataset::check_marks() const {
  int64_t previous = 0;
  for (int64_t i = 0; documents_ > 0 && i <= documents_; ++i) {
    const int64_t mark = mark_at(i);
    if (mark < previous || mark > sequences_) {
      bad(index_.path(), base::str("document mark ", i, ": got ", mark, ", allowed ", previous, " to ", sequences_));
    }
    previous = mark;
  }
}

int32_t IndexedDataset::length_at(int64_t sequence) const {
  return load<int32_t>(index_.bytes(), kHeaderSize + 4 * static_cast<size_t>(sequence));
}

int64_t IndexedDataset::pointer_at(int64_t sequence) const {
  return load<int64_t>(index_.bytes(), kHeaderSize + 4 * static_cast<size_t>(sequences_) + 8 * static_cast<size_t>(sequence));
}

int64_t IndexedDataset::mark_at(int64_t mark) const {
  return load<int64_t>(index_.bytes(), kHeaderSize + 12 * static_cast<size_t>(sequences_) + 8 * static_cast<size_t>(mark));
}

int64_t IndexedDataset::sequence_length(int64_t sequence) const {
  if (sequence < 0 || sequence >= sequences_) misused(prefix_, base::str("sequence: got ", sequence, ", allowed 0 to ", sequences_ - 1));
  return length_at(sequence);
}

std::span<const std::byte> IndexedDataset::sequence(int64_t sequence) const {
  const auto length = static_cast<size_t>(sequence_length(sequence));
  return data_.bytes().subspan(static_cast<size_t>(pointer_at(sequence)), length * token_size(type_));
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  if (document < 0 || document > documents_) misused(prefix_, base::str("document: got ", document, ", allowed 0 to ", documents_));
  return documents_ == 0 ? sequences_ : mark_at(document);
}

void IndexedDataset::read(int64_t first, std::span<int64_t> out) const {
  if (!contiguous_) misused(prefix_, "reading it as one run of tokens: got sequences with gaps or out of order, allowed back to back");
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || count > tokens_ || first > tokens_ - count) {
    misused(prefix_, base::str("tokens: got ", first, " to ", first + count, ", allowed 0 to ", tokens_));
  }
  with_type(type_, [&](auto zero) {
    using T = decltype(zero);
    const std::byte* from = data_.bytes().data() + static_cast<size_t>(first) * sizeof(T);
    for (size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, from + i * sizeof(T), sizeof(T));
      if constexpr (sizeof(T) == 8 && std::numeric_limits<T>::min() == 0) {
        if (value > static_cast<T>(INT64_MAX))
          bad(data_.path(), base::str("token ", first + static_cast<int64_t>(i), ": got ", value, ", allowed up to ", INT64_MAX));
      }
      out[i] = static_cast<int64_t>(value);
    }
  });
}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type)
    : prefix_(prefix), type_(type), data_(std::make_unique<OutputFile>(prefix + ".bin")) {}

void IndexedDatasetWriter::add(std::span<const int64_t> tokens) {
  if (tokens.size() > static_cast<size_t>(INT32_MAX))
    misused(prefix_, base::str("length of a sequence: got ", tokens.size(), ", allowed up to ", INT32_MAX));
  with_type(type_, [&](auto zero) {
    using T = decltype(zero);
    buffer_.resize(tokens.size() * sizeof(T));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const T value = static_cast<T>(tokens[i]);
      const bool fits = static_cast<int64_t>(value) == tokens[i] && (tokens[i] < 0) == (value < T{0});
      if (!fits) misused(prefix_, base::str("token: got ", tokens[i], ", allowed what ", sizeof(T), " bytes of this type hold"));
      std::memcpy(buffer_.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  data_->write(buffer_);
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
}

void IndexedDatasetWriter::end_document() { marks_.push_back(static_cast<int64_t>(lengths_.size())); }

void IndexedDatasetWriter::finish(bool durable) {
  OutputFile index(prefix_ + ".idx");
  const auto put = [&](const auto& value) { index.write(std::as_bytes(std::span(&value, 1))); };
  index.write(std::string_view(kMagic, kMagicSize));
  put(uint64_t{1});
  put(code_of(type_));
  put(static_cast<uint64_t>(lengths_.size()));
  put(static_cast<uint64_t>(marks_.size()));
  index.write(std::as_bytes(std::span(lengths_)));
  std::vector<int64_t> pointers;
  pointers.reserve(lengths_.size());
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    pointers.push_back(pointer);
    pointer += int64_t{length} * static_cast<int64_t>(token_size(type_));
  }
  index.write(std::as_bytes(std::span(pointers)));
  index.write(std::as_bytes(std::span(marks_)));
  data_->commit(durable);
  index.commit(durable);
}

}  // namespace deepspeed::formats
