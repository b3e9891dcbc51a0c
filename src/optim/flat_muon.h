// Muon on flat runs of matrices, Adam with decoupled decay on all others. States: moment; Adam's runs have variance too.
#pragma once

#include "optim/flat_adam.h"
#include "optim/optimizer.h"

namespace deepspeed::optim {

// With g the gradient times grad_scale: m += (1 - momentum) (g - m);  d = orthogonalised(g + momentum (m - g));  p -= lr (wd p + d)
class FlatMuon final : public Optimizer {
 public:
  FlatMuon(const std::vector<RunLayout>& runs, c10::Device device, double momentum);

  bool directs(size_t run) const override { return runs_[run].matrices; }
  // Each rank orthogonalises the matrices of which it has a piece, and keeps its pieces.
  void direct(const RunUpdate& update, const GatherRun& gather) override;
  void update(const RunUpdate& update) override;
  RunStates& states() override { return states_; }

 private:
  RunStates states_;
  double momentum_;
  std::vector<RunLayout> runs_;
};

// Whether Muon's rule is for a parameter: a matrix that is no embedding or head by its name.
bool takes_matrix_rule(const std::string& name, const std::vector<int64_t>& shape);

}  // namespace deepspeed::optim
