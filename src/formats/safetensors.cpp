#include "formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text.h"
#include "deepspeed/error.h"
#include "formats/safetensors_header.h"

static_assert(std::endian::native == std::endian::little, "tensor data is handed on as it lies in the file");

namespace deepspeed::formats {
namespace {

struct DtypeInfo {
  const char* name;
  size_t size;
};

// In the order of the enum.
constexpr DtypeInfo kDtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
                                 {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"C64", 8},     {"U64", 8}, {"I64", 8}, {"F64", 8}};

[[noreturn]] void bad(const std::string& source, const std::string& text) {
  throw Error(ErrorCode::kModelFormat, "safetensors", base::str(source, ": ", text));
}

// The tensors tile the data exactly.
void check_tiling(const SafetensorsHeader& header, const std::string& source) {
  uint64_t expected = 0;
  const std::string* previous = nullptr;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin != expected) {
      bad(source, base::str(entry.begin < expected ? "tensors overlap" : "a hole before a tensor", ": got offset ", entry.begin,
                            ", allowed ", expected, " (tensor ", entry.name, previous ? base::str(", after ", *previous) : "", ")"));
    }
    expected = entry.end;
    previous = &entry.name;
  }
  if (expected != header.data_size) {
    bad(source, base::str("size of the data: got ", header.data_size, " bytes in the file, allowed the ", expected,
                          " that the header describes", expected > header.data_size ? " (the file is cut short)" : ""));
  }
}

}  // namespace

const char* dtype_name(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }
size_t dtype_size(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].size; }

bool dtype_from_name(std::string_view name, Dtype* out) {
  const auto* found = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeInfo& info) { return name == info.name; });
  if (found == std::end(kDtypes)) return false;
  *out = static_cast<Dtype>(found - std::begin(kDtypes));
  return true;
}

bool tensor_bytes(const std::vector<int64_t>& shape, Dtype dtype, uint64_t* out) {
  uint64_t bytes = dtype_size(dtype);
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) return false;
  }
  *out = bytes;
  return bytes <= static_cast<uint64_t>(INT64_MAX);
}

uint64_t safetensors_header_size(std::span<const std::byte> prefix, uint64_t file_size, const std::string& source) {
  if (prefix.size() < 8 || file_size < 8) bad(source, base::str("size of the file: got ", file_size, " bytes, allowed 10 or more"));
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), 8);
  if (length < 2 || length > kLargestHeader) {
    bad(source, base::str("length of the header: got ", length, ", allowed 2 to ", kLargestHeader, " (is this a safetensors file?)"));
  }
  if (length > file_size - 8) {
    bad(source, base::str("length of the header: got ", length, ", allowed up to ", file_size - 8, " (the file is cut short)"));
  }
  return 8 + length;
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, uint64_t file_size, const std::string& source) {
  const uint64_t size = safetensors_header_size(file, file_size, source);
  if (file.size() < size) bad(source, base::str("parsing the header: got ", file.size(), " bytes of it, allowed ", size));

  const char* json = reinterpret_cast<const char*>(file.data()) + 8;
  SafetensorsHeader header = read_header_json(std::string_view(json, size - 8), source);
  header.data_begin = size;
  header.data_size = file_size - size;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.begin > entry.end || entry.end > header.data_size) {
      bad(source, base::str("data_offsets: got [", entry.begin, ", ", entry.end, "], allowed up to ", header.data_size, " (tensor ",
                            entry.name, ")"));
    }
    uint64_t bytes = 0;
    if (!tensor_bytes(entry.shape, entry.dtype, &bytes)) bad(source, base::str("shape: its size overflows (tensor ", entry.name, ")"));
    if (bytes != entry.size()) {
      bad(source, base::str("data_offsets: got ", entry.size(), " bytes, allowed the ", bytes, " that dtype and shape need (tensor ",
                            entry.name, ")"));
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  check_tiling(header, source);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(parse_safetensors_header(file_.bytes(), file_.bytes().size(), path)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

const TensorEntry& SafetensorsFile::at(const std::string& name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr)
    bad(path(), base::str("looking for a tensor: got none of the name ", name, ", allowed one of its ", entries().size()));
  return *entry;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  return file_.bytes().subspan(header_.data_begin + entry.begin, entry.size());
}

}  // namespace deepspeed::formats
