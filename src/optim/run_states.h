// The named fp32 tensors that an optimizer keeps beside each run ("moment", "variance", ...).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "optim/run_layout.h"

namespace deepspeed::optim {

// Owns the tensors. They start at zero.
class RunStates {
 public:
  RunStates(std::vector<std::string> names, const std::vector<RunLayout>& runs, c10::Device device);

  const std::vector<std::string>& names() const { return names_; }
  // State number `state` of a run: fp32, as many elements as the run.
  at::Tensor& get(size_t run, size_t state) { return tensors_[run][state]; }
  int64_t bytes_per_element() const { return static_cast<int64_t>(names_.size() * sizeof(float)); }

 private:
  std::vector<std::string> names_;
  std::vector<std::vector<at::Tensor>> tensors_;  // [run][state]
};

}  // namespace deepspeed::optim
