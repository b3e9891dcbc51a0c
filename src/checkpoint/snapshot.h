// The state of one moment in host memory, ready to be written: which pieces of which parameters every rank's file holds, and the bytes of this rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/image.h"
#include "store/index.h"
#include "store/shard_file.h"

namespace deepspeed::checkpoint {

// Host memory that is used again by the next snapshot.
class HostBuffers {
 public:
  // A CPU tensor with the elements of `source`: number `index` of this snapshot.
  at::Tensor copy(size_t index, const at::Tensor& source);

 private:
  std::vector<at::Tensor> buffers_;
};

struct Snapshot {
  std::vector<store::ParameterEntry> parameters;
  std::vector<store::ShardPlan> plans;           // by rank
  std::vector<std::span<const std::byte>> data;  // of this rank's plan: pieces, then generators
  std::vector<at::Tensor> held;                  // what `data` points into
  std::vector<std::string> state_names;
  std::string run_json, client_json;
};

// `buffers`: copy everything into them, so that training may go on. nullptr: `data` may point into the image's own tensors, which must stay as they are.
Snapshot take_snapshot(const Image& image, int rank, int ranks, const at::Tensor& device_probe, HostBuffers* buffers);

}  // namespace deepspeed::checkpoint
