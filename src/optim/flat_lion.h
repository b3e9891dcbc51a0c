// Lion on flat runs. State: moment.
#pragma once

#include "optim/optimizer.h"

namespace deepspeed::optim {

class FlatLion final : public Optimizer {
 public:
  FlatLion(const std::vector<RunLayout>& runs, c10::Device device);

  void update(const RunUpdate& update) override;
  RunStates& states() override { return states_; }

 private:
  RunStates states_;
  std::vector<std::vector<tensor::Range>> gaps_;  // by run: filling between and after the parameters
};

}  // namespace deepspeed::optim
