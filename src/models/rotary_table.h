// Cosines and sines of the rotary position embedding.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "deepspeed/model_info.h"

namespace deepspeed::models {

// Computed in fp32, kept in the dtype and on the device last asked for, grown as needed. Not thread safe.
class RotaryTable {
 public:
  RotaryTable(const ModelInfo::Rope& rope, int64_t head_dim) : rope_(rope), head_dim_(head_dim) {}

  // cos and sin [count, head_dim / 2] of positions begin, begin + 1, ... They carry no gradient.
  std::pair<at::Tensor, at::Tensor> get(int64_t begin, int64_t count, const at::TensorOptions& options);

 private:
  ModelInfo::Rope rope_;
  int64_t head_dim_;
  at::Tensor cos_, sin_;  // [capacity, head_dim / 2]
};

}  // namespace deepspeed::models
