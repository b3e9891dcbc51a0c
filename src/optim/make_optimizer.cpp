#include "optim/make_optimizer.h"

#include "base/check.h"
#include "optim/flat_adagrad.h"
#include "optim/flat_adam.h"
#include "optim/flat_lamb.h"
#include "optim/flat_lion.h"
#include "optim/flat_muon.h"
#include "optim/flat_sgd.h"

namespace deepspeed::optim {

std::unique_ptr<Optimizer> make_optimizer(const Config::Optimizer& config, const std::vector<RunLayout>& runs, c10::Device device) {
  if (config.type.empty() || config.type == "adam" || config.type == "adamw") {
    return std::make_unique<FlatAdam>(runs, device, AdamOptions{config.adam_w_mode, config.bias_correction, config.amsgrad});
  }
  if (config.type == "lion") return std::make_unique<FlatLion>(runs, device);
  if (config.type == "adagrad") {
    return std::make_unique<FlatAdagrad>(runs, device, AdagradOptions{config.lr_decay, config.initial_accumulator_value});
  }
  if (config.type == "SGD") return std::make_unique<FlatSgd>(runs, device, SgdOptions{config.momentum, config.dampening, config.nesterov});
  if (config.type == "lamb") {
    return std::make_unique<FlatLamb>(runs, device,
                                      LambOptions{config.bias_correction, config.eps_inside_sqrt, config.min_coeff, config.max_coeff});
  }
  if (config.type == "muon") return std::make_unique<FlatMuon>(runs, device, config.momentum);
  DS_CHECK(false, "optimizer ", config.type);
  return nullptr;
}

}  // namespace deepspeed::optim
