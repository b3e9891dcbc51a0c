// LAMB on flat runs: the trust ratio of each parameter comes from two norms of all of it, summed over the ranks that hold pieces. States: moment,
// variance.
#pragma once

#include "kernels/lamb.h"
#include "optim/optimizer.h"

namespace deepspeed::optim {

struct LambOptions {
  bool bias_correction = true;
  bool eps_inside_sqrt = false;
  double min_trust = 0.01, max_trust = 10.0;
};

class FlatLamb final : public Optimizer {
 public:
  FlatLamb(const std::vector<RunLayout>& runs, c10::Device device, LambOptions options);

  bool needs_preparation() const override { return true; }
  void prepare(const RunUpdate& update) override;  // moments, and the sums of this rank's pieces
  void exchange(const SumOverRanks& sum) override;
  void update(const RunUpdate& update) override;
  RunStates& states() override { return states_; }

  // Of the last step, by run and parameter.
  const std::vector<std::vector<double>>& trust() const { return trust_; }

 private:
  kernels::LambStep step_of(const RunUpdate& update) const;
  void prepare_on_accelerator(const RunUpdate& update);
  at::Tensor direction(const RunUpdate& update);

  RunStates states_;
  LambOptions options_;
  std::vector<RunLayout> runs_;
  std::vector<std::vector<kernels::LambSums>> sums_;  // [run][parameter], whole parameters after exchange()
  std::vector<std::vector<double>> trust_;
};

}  // namespace deepspeed::optim
