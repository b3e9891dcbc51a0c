#include "optim/run_states.h"

#include <ATen/ops/zeros.h>

namespace deepspeed::optim {

RunStates::RunStates(std::vector<std::string> names, const std::vector<RunLayout>& runs, c10::Device device)
    : RunStates(names, runs, device, std::vector<size_t>(runs.size(), names.size())) {}

RunStates::RunStates(std::vector<std::string> names, const std::vector<RunLayout>& runs, c10::Device device,
                     const std::vector<size_t>& counts)
    : names_(std::move(names)) {
  for (size_t r = 0; r < runs.size(); ++r) {
    std::vector<at::Tensor> states;
    for (size_t i = 0; i < counts[r]; ++i) {
      states.push_back(at::zeros({runs[r].elements}, at::TensorOptions().dtype(at::kFloat).device(device)));
    }
    tensors_.push_back(std::move(states));
  }
}

}  // namespace deepspeed::optim
