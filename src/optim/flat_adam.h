// Adam and AdamW on flat runs. States: moment, variance.
#pragma once

#include "optim/optimizer.h"

namespace deepspeed::optim {

struct AdamOptions {
  bool decoupled = true;  // weight decay outside the gradient
  bool bias_correction = true;
};

class FlatAdam final : public Optimizer {
 public:
  FlatAdam(const std::vector<RunLayout>& runs, c10::Device device, AdamOptions options)
      : states_({"moment", "variance"}, runs, device), options_(options) {}

  void update(const RunUpdate& update) override;
  RunStates& states() override { return states_; }

 private:
  RunStates states_;
  AdamOptions options_;
};

}  // namespace deepspeed::optim
