// The saved side of a load: parameters by name, whoever wrote them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/safetensors.h"
#include "store/file_system.h"

namespace deepspeed::store {

struct SavedParameter {
  std::vector<int64_t> shape;
  bool trained = false;  // has optimizer state
};

struct SavedBuffer {
  std::vector<int64_t> shape;
  formats::Dtype dtype = formats::Dtype::kF32;
};

class Source {
 public:
  virtual ~Source() = default;

  virtual const std::unordered_map<std::string, SavedParameter>& parameters() const = 0;
  // Of the module (running means and the like). None: this kind of checkpoint does not carry them.
  virtual const std::map<std::string, SavedBuffer>& buffers() const;
  // Of the optimizer, by the names in the files.
  virtual const std::vector<std::string>& state_names() const = 0;
  virtual int world_size() const = 0;           // that saved it
  virtual std::string run_json() const = 0;     // what engine/checkpoint_state.cpp writes
  virtual std::string client_json() const = 0;  // the caller's
  // out[count] = elements [begin, begin + count) of a parameter's values, as fp32. Throws Error(kCheckpointDamaged).
  virtual void read_values(const std::string& name, int64_t begin, int64_t count, float* out) = 0;
  // The same of one of its states: the first of `names` that the parameter has.
  virtual void read_state(const std::string& name, const std::vector<std::string>& names, int64_t begin, int64_t count, float* out) = 0;
  // By exactly this name.
  virtual bool has_state(const std::string& name, const std::string& state) const = 0;
  // The bytes of a whole buffer, rows first. Throws Error(kCheckpointDamaged).
  virtual std::vector<std::byte> read_buffer(const std::string& name);
  // State of the random generator of `rank` for a device ("cpu", "cuda"); empty: none was saved.
  virtual std::span<const std::byte> generator(int rank, const std::string& device) = 0;

  // Compare with checksums what a read would return, so that damage is known before anything is overwritten. Where a format has no checksums they do nothing.
  // Throw Error(kCheckpointDamaged).
  virtual void verify_values(const std::string& name, int64_t begin, int64_t count) {}
  virtual void verify_state(const std::string& name, const std::vector<std::string>& names, int64_t begin, int64_t count) {}
  // What belongs to no parameter: part `rank` of `ranks`.
  virtual void verify_rest(int rank, int ranks) {}
};

// DIR/TAG of save_checkpoint(); of version 1 (index.json); of the real DeepSpeed: ZeRO stages 1 to 3, or a Universal Checkpoint.
std::unique_ptr<Source> open_native(FileSystem& files, const std::string& path);
std::unique_ptr<Source> open_native_v1(const std::string& path);
std::unique_ptr<Source> open_deepspeed(const std::string& directory, const std::string& tag);
// Whichever of these DIR/TAG is. Throws Error(kCheckpointMissing) when it is none or not there, naming the tags that are.
std::unique_ptr<Source> open_source(FileSystem& files, const std::string& directory, const std::string& tag);

}  // namespace deepspeed::store
