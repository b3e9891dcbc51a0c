// The named fp32 tensors that an optimizer keeps beside each run ("moment", "variance", ...).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "optim/run_layout.h"

namespace deepspeed::optim {

// Owns the tensors. They start at zero. A run may have fewer than all states: then it has the first ones.
class RunStates {
 public:
  RunStates(std::vector<std::string> names, const std::vector<RunLayout>& runs, c10::Device device);
  // counts: by run, the number of its states.
  RunStates(std::vector<std::string> names, const std::vector<RunLayout>& runs, c10::Device device, const std::vector<size_t>& counts);

  const std::vector<std::string>& names() const { return names_; }
  // State number `state` of a run: fp32, as many elements as the run.
  at::Tensor& get(size_t run, size_t state) { return tensors_[run][state]; }
  size_t count(size_t run) const { return tensors_[run].size(); }
  int64_t bytes_per_element(size_t run) const { return static_cast<int64_t>(count(run) * sizeof(float)); }

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<at::Tensor>> tensors_;  // [run][state]
};

}  // namespace deepspeed::optim
