#include "formats/torch_file.h"

#include <zlib.h>

#include <cstring>
#include <vector>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

[[noreturn]] void fail(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kCheckpointDamaged, "formats", base::str("torch file ", source, ": ", what));
}

// Little endian fields of a zip structure.
class Fields {
 public:
  Fields(std::span<const std::byte> file, uint64_t at, uint64_t size, const std::string& source, const char* what) {
    if (at > file.size() || size > file.size() - at)
      fail(source, base::str(what, " at byte ", at, " lies outside the file (", file.size(), " bytes): cut off?"));
    part_ = file.subspan(at, size);
  }
  template <typename T>
  T get(size_t offset) const {
    T value;
    std::memcpy(&value, part_.data() + offset, sizeof value);
    return value;
  }
  std::span<const std::byte> part() const { return part_; }

 private:
  std::span<const std::byte> part_;
};

uint32_t checksum(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Where the directory of the archive lies.
struct Directory {
  uint64_t at = 0, size = 0, entries = 0;
};

Directory find_directory(std::span<const std::byte> file, const std::string& source) {
  constexpr uint64_t kEnd = 22;
  const uint64_t furthest = file.size() > kEnd + 0xFFFF ? file.size() - kEnd - 0xFFFF : 0;
  for (uint64_t at = file.size() < kEnd ? 0 : file.size() - kEnd + 1; at-- > furthest;) {
    const Fields end(file, at, kEnd, source, "end of the archive");
    if (end.get<uint32_t>(0) != 0x06054b50) continue;
    Directory found{end.get<uint32_t>(16), end.get<uint32_t>(12), end.get<uint16_t>(10)};
    if (found.at != 0xFFFFFFFF && found.size != 0xFFFFFFFF && found.entries != 0xFFFF) return found;
    // Large archives: the true numbers lie in a second end, which a locator just before this one points to.
    if (at < 20) fail(source, "the locator of a large archive is missing");
    const Fields locator(file, at - 20, 20, source, "locator of the archive's end");
    if (locator.get<uint32_t>(0) != 0x07064b50) return found;
    const Fields large(file, locator.get<uint64_t>(8), 56, source, "end of a large archive");
    if (large.get<uint32_t>(0) != 0x06064b50) fail(source, "the end of a large archive is missing");
    return {large.get<uint64_t>(48), large.get<uint64_t>(40), large.get<uint64_t>(32)};
  }
  fail(source, "got no zip archive, allowed what torch.save writes (since torch 1.6): cut off?");
}

}  // namespace

std::map<std::string, ZipRecord, std::less<>> read_zip(std::span<const std::byte> file, const std::string& source) {
  const Directory directory = find_directory(file, source);
  std::map<std::string, ZipRecord, std::less<>> records;
  uint64_t at = directory.at;
  for (uint64_t entry = 0; entry < directory.entries; ++entry) {
    const Fields fields(file, at, 46, source, "directory entry");
    if (fields.get<uint32_t>(0) != 0x02014b50) fail(source, base::str("directory entry ", entry, " is damaged"));
    const uint64_t name_size = fields.get<uint16_t>(28), extra_size = fields.get<uint16_t>(30), comment_size = fields.get<uint16_t>(32);
    const Fields rest(file, at + 46, name_size + extra_size, source, "directory entry");
    const std::string name(reinterpret_cast<const char*>(rest.part().data()), name_size);
    uint64_t packed = fields.get<uint32_t>(20), size = fields.get<uint32_t>(24), place = fields.get<uint32_t>(42);
    // Numbers that do not fit 32 bits follow in an extra field of kind 1, in this order.
    for (uint64_t x = name_size; x + 4 <= name_size + extra_size;) {
      const auto kind = rest.get<uint16_t>(x);
      const uint64_t length = rest.get<uint16_t>(x + 2), end = x + 4 + length;
      if (end > name_size + extra_size) break;
      uint64_t next = x + 4;
      for (uint64_t* number : {&size, &packed, &place}) {
        if (kind != 1 || *number != 0xFFFFFFFF || next + 8 > end) continue;
        *number = rest.get<uint64_t>(next);
        next += 8;
      }
      x = end;
    }
    if (fields.get<uint16_t>(10) != 0 || packed != size)
      fail(source, base::str("record ", name, " is compressed, allowed stored as it is"));
    const Fields local(file, place, 30, source, "record");
    if (local.get<uint32_t>(0) != 0x04034b50) fail(source, base::str("record ", name, " is damaged"));
    const uint64_t data = place + 30 + local.get<uint16_t>(26) + local.get<uint16_t>(28);
    const Fields content(file, data, size, source, name.c_str());
    if (!records.emplace(name, ZipRecord{content.part(), fields.get<uint32_t>(16)}).second)
      fail(source, base::str("record ", name, " is there twice"));
    at += 46 + name_size + extra_size + comment_size;
  }
  return records;
}

TorchFile::TorchFile(const std::string& path) : file_(path), records_(read_zip(file_.bytes(), path)) {
  const auto checked = [&](const std::string& name) -> const ZipRecord* {
    const auto found = records_.find(prefix_ + name);
    if (found == records_.end()) return nullptr;
    if (checksum(found->second.bytes) != found->second.crc)
      fail(path, base::str("record ", prefix_, name, " has changed since it was written (checksum)"));
    return &found->second;
  };
  for (const auto& [name, record] : records_) {
    if (name.ends_with("/data.pkl")) prefix_ = name.substr(0, name.size() - 8);
  }
  const ZipRecord* pickle = checked("data.pkl");
  if (!pickle) fail(path, "got an archive without data.pkl, allowed what torch.save writes");
  if (const ZipRecord* order = checked("byteorder")) {
    const std::string_view text(reinterpret_cast<const char*>(order->bytes.data()), order->bytes.size());
    if (text != "little") fail(path, base::str("byte order: got ", std::string(text), ", allowed little"));
  }
  pickle_ = std::make_unique<Pickle>(pickle->bytes, path);
}

std::span<const std::byte> TorchFile::storage(const PickleTensor& tensor) const {
  const std::string name = prefix_ + "data/" + tensor.storage;
  const auto found = records_.find(name);
  if (found == records_.end()) fail(path(), base::str("record ", name, " is missing"));
  const uint64_t expected = tensor.storage_elements * dtype_size(tensor.dtype);
  const auto bytes = found->second.bytes;
  if (bytes.size() != expected) fail(path(), base::str("record ", name, ": got ", bytes.size(), " bytes, allowed ", expected));
  if (checksum(bytes) != found->second.crc) fail(path(), base::str("record ", name, " has changed since it was written (checksum)"));
  return bytes;
}

void TorchFile::read(const PickleTensor& tensor, std::byte* out) const {
  const auto bytes = storage(tensor);
  const size_t width = dtype_size(tensor.dtype), dimensions = tensor.shape.size();
  uint64_t elements = 1, dense = 1;
  bool contiguous = true;
  for (size_t d = dimensions; d-- > 0;) {
    contiguous = contiguous && (tensor.shape[d] == 1 || tensor.stride[d] == static_cast<int64_t>(dense));
    elements *= static_cast<uint64_t>(tensor.shape[d]);
    dense *= static_cast<uint64_t>(tensor.shape[d]);
  }
  if (elements == 0) return;
  if (contiguous) {
    std::memcpy(out, bytes.data() + tensor.offset * width, elements * width);
    return;
  }
  std::vector<int64_t> index(dimensions, 0);
  uint64_t place = tensor.offset;
  for (uint64_t element = 0; element < elements; ++element) {
    std::memcpy(out + element * width, bytes.data() + place * width, width);
    for (size_t d = dimensions; d-- > 0;) {
      place += static_cast<uint64_t>(tensor.stride[d]);
      if (++index[d] < tensor.shape[d]) break;
      place -= static_cast<uint64_t>(tensor.stride[d] * tensor.shape[d]);
      index[d] = 0;
    }
  }
}

}  // namespace deepspeed::formats
