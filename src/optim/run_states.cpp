#include "optim/run_states.h"

#include <ATen/ops/zeros.h>

namespace deepspeed::optim {

RunStates::RunStates(std::vector<std::string> names, const std::vector<RunLayout>& runs, c10::Device device) : names_(std::move(names)) {
  for (const auto& run : runs) {
    std::vector<at::Tensor> states;
    for (size_t i = 0; i < names_.size(); ++i) {
      states.push_back(at::zeros({run.elements}, at::TensorOptions().dtype(at::kFloat).device(device)));
    }
    tensors_.push_back(std::move(states));
  }
}

}  // namespace deepspeed::optim
