// Adam and AdamW on flat runs: one pass over a shard, however many tensors lie in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace deepspeed::optim {

struct AdamSettings {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = true;
  bool bias_correction = true;
};

// Moments of a list of runs. Owns them; starts at zero. Not thread safe.
class FlatAdam {
 public:
  FlatAdam(const std::vector<int64_t>& run_elements, c10::Device device);

  // Updates master[n] (fp32) by gradient[n] * grad_scale. `half_copy` (bfloat16[n], or undefined) receives the new values rounded. `step` counts
  // from 1.
  void update(size_t run, at::Tensor master, const at::Tensor& gradient, at::Tensor half_copy, const AdamSettings& settings, int64_t step,
              double grad_scale);

  at::Tensor& moment(size_t run) { return moments_[run]; }
  at::Tensor& variance(size_t run) { return variances_[run]; }
  size_t runs() const { return moments_.size(); }

 private:
  std::vector<at::Tensor> moments_, variances_;
};

}  // namespace deepspeed::optim
