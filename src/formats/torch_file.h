// Files of torch.save: a zip archive, uncompressed, of a pickle and the storages of its tensors.
//
//   NAME/data.pkl      the value (formats/pickle.h)          NAME/byteorder   "little"
//   NAME/data/KEY      elements of storage KEY               NAME/version, ... ignored
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/mapped_file.h"
#include "formats/pickle.h"

namespace deepspeed::formats {

// Records of an uncompressed zip archive, by name, as parts of `file`. Throws Error(kCheckpointDamaged) naming `source`. Safe on any input. Does
// not compare checksums.
struct ZipRecord {
  std::span<const std::byte> bytes;
  uint32_t crc = 0;  // CRC-32 of the bytes
};
std::map<std::string, ZipRecord, std::less<>> read_zip(std::span<const std::byte> file, const std::string& source);

// An open file. Thread safe for reading; MappedFile's warning about shortened files holds.
class TorchFile {
 public:
  // Throws Error(kFile) or Error(kCheckpointDamaged).
  explicit TorchFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const PickleValue& root() const { return pickle_->root(); }
  // The whole storage of a tensor, little endian, which need not be aligned; its checksum has been compared. Throws Error(kCheckpointDamaged) when it is missing,
  // of another size or changed.
  std::span<const std::byte> storage(const PickleTensor& tensor) const;
  // The tensor's elements, row by row, into out[elements * size]. Any strides.
  void read(const PickleTensor& tensor, std::byte* out) const;

 private:
  MappedFile file_;
  std::map<std::string, ZipRecord, std::less<>> records_;
  std::string prefix_;  // "NAME/"
  std::unique_ptr<Pickle> pickle_;
};

}  // namespace deepspeed::formats
