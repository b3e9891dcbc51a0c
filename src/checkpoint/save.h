// Writing a checkpoint so that a crash at any moment leaves the older ones whole.
//
//   rank 0 makes DIR/.tmp.TAG  ->  every rank writes and syncs its file there  ->  rank 0 writes index.json, syncs, renames to DIR/TAG,
//   syncs DIR, and replaces DIR/latest (a hint; written the same way)
//
// Layout: docs/formats/checkpoint.md.
#pragma once

#include <string>

#include "checkpoint/image.h"
#include "deepspeed/comm.h"

namespace deepspeed::checkpoint {

// Collective. Returns the path DIR/TAG. Throws on every rank when any rank fails: Error(kCheckpointWrite); nothing is left behind then.
std::string save(Communicator& communicator, const std::string& directory, const std::string& tag, const Image& image,
                 const at::Tensor& device_probe);

}  // namespace deepspeed::checkpoint
