#include "optim/state_names.h"

#include <map>

namespace deepspeed::optim {

std::vector<std::string> names_of_state(const std::string& state) {
  static const std::map<std::string, std::vector<std::string>> kTorch = {
      {"moment", {"exp_avg", "momentum_buffer"}},  // the second is Muon's, of matrices
      {"variance", {"exp_avg_sq"}},
      {"largest_variance", {"max_exp_avg_sq"}},
      {"square_sum", {"sum", "exp_avg_sq"}},  // the second is DeepSpeedCPUAdagrad's
      {"momentum", {"momentum_buffer"}}};
  std::vector<std::string> names = {state};
  if (const auto found = kTorch.find(state); found != kTorch.end()) names.insert(names.end(), found->second.begin(), found->second.end());
  return names;
}

}  // namespace deepspeed::optim
