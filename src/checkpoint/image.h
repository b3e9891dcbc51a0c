// A training state as the checkpoint sees it: this rank's shard of every unit, whatever the ZeRO stage, and the run's own values as JSON.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tensor/unit_layout.h"

namespace deepspeed::checkpoint {

struct UnitImage {
  const tensor::UnitLayout* layout = nullptr;
  at::Tensor parameter;  // [shard]; fp32 master when trained, else the working type
  bool trained = false;
  std::vector<at::Tensor> states;  // of the optimizer, in the order of Image::state_names; [shard]; none when frozen
};

struct BufferImage {
  std::string name;
  at::Tensor tensor;  // the module's own; that of rank 0 is saved
};

struct Image {
  std::vector<UnitImage> units;
  std::vector<BufferImage> buffers;
  std::vector<std::string> state_names;
  // By state: every name that a checkpoint may have for it, the one above first.
  std::vector<std::vector<std::string>> state_aliases;
  std::string run_json = "{}";     // counters, schedule, configuration
  std::string client_json = "{}";  // the caller's
};

}  // namespace deepspeed::checkpoint
