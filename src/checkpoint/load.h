// Reading a checkpoint, at any world size and with any unit layout: the index says which file holds which elements of a parameter.
#pragma once

#include <string>

#include "checkpoint/image.h"
#include "deepspeed/comm.h"

namespace deepspeed::checkpoint {

struct Loaded {
  std::string path;
  std::string run_json;
  std::string client_json;
  int world_size = 0;  // that saved it
};

// Collective. Fills the tensors of `image` (this rank's shards) and restores the CPU random generator when the world size is that of the save. An
// empty `tag` means what DIR/latest names. Throws on every rank when any rank fails: kCheckpointMissing, kCheckpointDamaged (file and tensor named) or
// kCheckpointMismatch (every missing, unknown or differently shaped parameter listed). Nothing is overwritten before names and shapes are checked.
// A folder of the real DeepSpeed (ZeRO stages 1 to 3, or Universal) is read as well; `universal`: its latest_universal comes before latest.
Loaded load(Communicator& communicator, const std::string& directory, const std::string& tag, bool universal, Image& image,
            const at::Tensor& device_probe);

}  // namespace deepspeed::checkpoint
