// Safetensors files: header, reader and writer.
//
//   byte 0   uint64, little endian: length N of the header, at most 100 MB
//   byte 8   N bytes of JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
//   byte 8+N data; offsets count from here. Tensors lie back to back: no holes, no overlap, nothing after the last
//
// Rules beyond the common readers': names are unique (JSON keys twice are an Error), the header is exactly the keys above, JSON is valid
// UTF-8. The writer pads the header with spaces to a multiple of 8. docs/formats/safetensors.md has the details.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/mapped_file.h"
#include "formats/output_file.h"

namespace deepspeed::formats {

enum class Dtype { kBool, kU8, kI8, kF8E5M2, kF8E4M3, kU16, kI16, kF16, kBF16, kU32, kI32, kF32, kC64, kU64, kI64, kF64 };

const char* dtype_name(Dtype dtype);  // as in the header: "BF16"
size_t dtype_size(Dtype dtype);       // bytes per element

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // empty: a scalar
  uint64_t begin = 0;          // bytes from the start of the data
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // byte in the file where the data starts
  uint64_t data_size = 0;
};

// Bytes of a file that begins with `prefix`, needed to parse its header: 8 + N. Throws Error(kModelFormat) when N is not allowed.
uint64_t safetensors_header_size(std::span<const std::byte> prefix, uint64_t file_size, const std::string& source);

// Parses and checks everything. `file` holds at least the header; `file_size` is the size of the whole file; `source` names it in errors.
// Throws Error(kModelFormat) naming source and tensor. Safe on any input.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, uint64_t file_size, const std::string& source);

// What a writer is told of a tensor before its data.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;

  uint64_t size() const;  // bytes; Error(kUsage) when that overflows
};

// The first bytes of a file with these tensors in this order, up to where the data starts. Throws Error(kUsage) on a name given twice or
// reserved. For writers that place data themselves.
std::string make_safetensors_header(const std::vector<TensorSpec>& tensors, const std::map<std::string, std::string>& metadata);

// An open file. Thread safe for reading; MappedFile's warning about shortened files holds.
class SafetensorsFile {
 public:
  // Throws Error(kFile) or Error(kModelFormat).
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& entries() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const TensorEntry* find(const std::string& name) const;  // nullptr: not there
  const TensorEntry& at(const std::string& name) const;    // Error(kModelFormat): not there
  // Little endian elements, row by row; need not be aligned. Valid while this object lives.
  std::span<const std::byte> bytes(const TensorEntry& entry) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;
};

// Writes a file piece by piece, holding no tensor. Tensors come in the declared order.
class SafetensorsWriter {
 public:
  static const std::map<std::string, std::string>& default_metadata();  // {"format": "pt"}

  // Appears under `path` at finish(). Throws Error(kFile) or Error(kUsage).
  SafetensorsWriter(const std::string& path, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = default_metadata());
  // Writes to an open descriptor from its present position; it stays the caller's. `source` names it in errors.
  SafetensorsWriter(int fd, const std::string& source, std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = default_metadata());

  // A whole tensor: the next declared one. Error(kUsage) when name or size differ.
  void write(const std::string& name, std::span<const std::byte> data);
  // A piece of the next tensor's data.
  void append(std::span<const std::byte> data);
  // Error(kUsage) when data is missing. `durable`: returns when everything has reached the disk.
  void finish(bool durable);

 private:
  void put(std::span<const std::byte> data);

  std::string source_;
  std::unique_ptr<OutputFile> file_;  // empty: the caller's descriptor
  int fd_ = -1;
  std::vector<TensorSpec> tensors_;
  size_t next_ = 0;      // tensor that is being written
  uint64_t filled_ = 0;  // bytes of it that are written
};

}  // namespace deepspeed::formats
