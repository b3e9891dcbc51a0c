// The index of a checkpoint: which bytes of which file hold which elements of which parameter, and the run's own values.
//
//   parameter "w" [6, 4]      |0 ........ 10|10 ......... 20|20 .. 24|     elements, rows first
//   pieces of kind "value"     file 0         file 1         file 2
//
// On disk an SQLite database (docs/formats/checkpoint.md); in memory plain values. Nothing here depends on ZeRO stages or units.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "store/checksum.h"

namespace deepspeed::store {

inline constexpr const char* kFormatName = "deepspeed-native-checkpoint";
inline constexpr int kFormatVersion = 2;
inline constexpr const char* kIndexFile = "index.sqlite";
inline constexpr const char* kChecksumsFile = "CHECKSUMS";
inline constexpr const char* kValue = "value";  // the kind of a parameter's own values

struct FileEntry {
  std::string name;  // inside the checkpoint's folder
  uint64_t bytes = 0;
  uint64_t data_begin = 0;  // first byte after the safetensors header
  Hash hash{};
  std::vector<uint32_t> chunks;  // CRC32C of each kChunkBytes
};

enum class Role { kTrained, kFrozen, kBuffer };
const char* role_name(Role role);  // "trained", "frozen", "buffer"

struct ParameterEntry {
  std::string name;
  std::vector<int64_t> shape;
  Role role = Role::kTrained;

  int64_t elements() const;  // of a checked index or of a real tensor: fits
};

struct Piece {
  size_t parameter = 0;          // in Index::parameters
  std::string kind;              // kValue, or a state of the optimizer
  int64_t begin = 0, count = 0;  // elements of the parameter, rows first
  formats::Dtype dtype = formats::Dtype::kF32;
  size_t file = 0;      // in Index::files
  uint64_t offset = 0;  // bytes from the file's begin

  uint64_t bytes() const { return static_cast<uint64_t>(count) * formats::dtype_size(dtype); }
};

struct GeneratorEntry {
  int rank = 0;
  std::string device;  // "cpu"
  size_t file = 0;
  uint64_t offset = 0, bytes = 0;
};

struct Index {
  std::string tag;
  int world_size = 0;  // that saved it
  std::vector<std::string> state_names;
  std::vector<FileEntry> files;
  std::vector<ParameterEntry> parameters;
  std::vector<Piece> pieces;  // a checked index: by parameter, kind and begin
  std::vector<GeneratorEntry> generators;
  std::string run_json = "{}";     // counters, schedule, configuration
  std::string client_json = "{}";  // the caller's
  std::string library_version;
};

// Throws Error(kCheckpointDamaged), naming `source` and the entry, unless names are plain and unique, everything lies inside its file and the pieces of each
// kind cover their parameter without gap or overlap. Sorts the pieces.
void check_index(Index& index, const std::string& source);

// The database, byte for byte the same for the same index.
std::vector<std::byte> write_index(const Index& index);
// Back, checked. Safe on any input. Throws Error(kCheckpointDamaged).
Index read_index(std::span<const std::byte> database, const std::string& source);

// The text of the file CHECKSUMS, in the form of xxhsum: each file of the checkpoint with its hash. What a reader trusts: it compares the whole text.
std::string checksums_text(const Index& index, const Hash& hash_of_index);

}  // namespace deepspeed::store
