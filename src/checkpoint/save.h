// Writing a checkpoint so that a crash at any moment leaves the older ones whole.
//
//   all ranks: snapshot  ->  rank 0 makes DIR/.tmp.TAG  ->  every rank writes and syncs its file there, summing as it goes
//     ->  rank 0 gathers the sums, writes index.sqlite and CHECKSUMS, syncs, renames to DIR/TAG, syncs DIR, replaces DIR/latest
//
// Layout: docs/formats/checkpoint.md.
#pragma once

#include <string>

#include "checkpoint/snapshot.h"
#include "deepspeed/comm.h"
#include "store/file_system.h"

namespace deepspeed::checkpoint {

struct SaveRequest {
  std::string directory, tag;
  int keep_last = 0;  // checkpoints that stay, this one among them; 0: all
};

// Throws Error(kUsage) on a request or client state that cannot be saved.
void check_request(const SaveRequest& request, const std::string& client_json);

// Collective. Returns the path DIR/TAG. Throws on every rank when any rank fails: Error(kCheckpointWrite) or the code of the rank that failed; nothing is left
// behind then. `files` may differ by rank only in what it fails at.
std::string write_checkpoint(Communicator& communicator, store::FileSystem& files, const SaveRequest& request, const Snapshot& snapshot,
                             const at::Tensor& device_probe);

}  // namespace deepspeed::checkpoint
