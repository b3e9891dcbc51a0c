// Reading a checkpoint, at any world size and with any unit layout: the index says which file holds which elements of a parameter.
#pragma once

#include <string>

#include "checkpoint/image.h"
#include "deepspeed/comm.h"

namespace deepspeed::checkpoint {

struct LoadRequest {
  std::string directory;
  std::string tag;         // empty: what DIR/latest names
  bool universal = false;  // the real DeepSpeed's latest_universal comes before latest
  bool fallback = false;   // when that one is missing or damaged, the newest whole one, with a warning
};

struct Loaded {
  std::string path;
  std::string run_json;
  std::string client_json;
  int world_size = 0;  // that saved it
  std::string damage;  // why an older one than asked for was taken; empty: it was not
};

// Collective. Fills the tensors of `image` (this rank's shards, the module's buffers) and restores the random generators when the world size is that of the
// save. Throws on every rank when any rank fails: kCheckpointMissing, kCheckpointDamaged (file, tensor and bytes named) or kCheckpointMismatch (every missing,
// unknown or differently shaped parameter listed). Nothing is overwritten before names, shapes and checksums are compared.
// A folder of the real DeepSpeed (ZeRO stages 1 to 3, or Universal) is read as well.
Loaded load(Communicator& communicator, const LoadRequest& request, Image& image, const at::Tensor& device_probe);

}  // namespace deepspeed::checkpoint
