// Adagrad on flat runs. State: square_sum.
#pragma once

#include "optim/optimizer.h"

namespace deepspeed::optim {

struct AdagradOptions {
  double lr_decay = 0.0;
  double initial_accumulator_value = 0.0;
};

class FlatAdagrad final : public Optimizer {
 public:
  FlatAdagrad(const std::vector<RunLayout>& runs, c10::Device device, AdagradOptions options);

  void update(const RunUpdate& update) override;
  RunStates& states() override { return states_; }

 private:
  RunStates states_;
  AdagradOptions options_;
};

}  // namespace deepspeed::optim
