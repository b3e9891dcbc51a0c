// Adam and AdamW on flat runs. States: moment, variance, and with AMSGrad largest_variance.
#pragma once

#include "optim/optimizer.h"

namespace deepspeed::optim {

struct AdamOptions {
  bool decoupled = true;  // weight decay outside the gradient
  bool bias_correction = true;
  bool amsgrad = false;
};

class FlatAdam final : public Optimizer {
 public:
  FlatAdam(const std::vector<RunLayout>& runs, c10::Device device, AdamOptions options);

  void update(const RunUpdate& update) override;
  RunStates& states() override { return states_; }

 private:
  RunStates states_;
  AdamOptions options_;
};

// torch's fused kernels; `largest` is for AMSGrad only.
void update_adam_on_accelerator(const RunUpdate& update, at::Tensor moment, at::Tensor variance, const at::Tensor& largest,
                                const AdamOptions& options);

}  // namespace deepspeed::optim
