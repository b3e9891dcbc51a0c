// SGD on flat runs. State: momentum, unless that is 0.
#pragma once

#include "optim/optimizer.h"

namespace deepspeed::optim {

struct SgdOptions {
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
};

class FlatSgd final : public Optimizer {
 public:
  FlatSgd(const std::vector<RunLayout>& runs, c10::Device device, SgdOptions options);

  void update(const RunUpdate& update) override;
  RunStates& states() override { return states_; }

 private:
  RunStates states_;
  SgdOptions options_;
};

}  // namespace deepspeed::optim
