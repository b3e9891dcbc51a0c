// The saved side of a load: parameters by name, whoever wrote them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace deepspeed::checkpoint {

struct SavedParameter {
  std::vector<int64_t> shape;
  bool trained = false;  // has optimizer state
};

class Source {
 public:
  virtual ~Source() = default;

  virtual const std::unordered_map<std::string, SavedParameter>& parameters() const = 0;
  // Of the optimizer, by the names in the files.
  virtual const std::vector<std::string>& state_names() const = 0;
  virtual int world_size() const = 0;           // that saved it
  virtual std::string run_json() const = 0;     // what engine/checkpoint_state.cpp writes
  virtual std::string client_json() const = 0;  // the caller's
  // out[count] = elements [begin, begin + count) of a parameter's values, as fp32. Throws Error(kCheckpointDamaged).
  virtual void read_values(const std::string& name, int64_t begin, int64_t count, float* out) = 0;
  // The same of one of its states: the first of `names` that the parameter has.
  virtual void read_state(const std::string& name, const std::vector<std::string>& names, int64_t begin, int64_t count, float* out) = 0;
  // State of the random generator of `rank`; empty: none was saved.
  virtual std::span<const std::byte> generator(int rank) = 0;
};

// DIR/TAG of save_checkpoint().
std::unique_ptr<Source> open_native(const std::string& path);
// DIR/TAG of the real DeepSpeed: ZeRO stages 1 to 3, or a Universal Checkpoint.
std::unique_ptr<Source> open_deepspeed(const std::string& directory, const std::string& tag);

}  // namespace deepspeed::checkpoint
