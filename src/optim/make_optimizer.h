// The optimizer that a configuration names.
#pragma once

#include <memory>

#include "deepspeed/config.h"
#include "optim/optimizer.h"

namespace deepspeed::optim {

// `config` is checked. An empty type stands for Adam with its defaults.
std::unique_ptr<Optimizer> make_optimizer(const Config::Optimizer& config, const std::vector<RunLayout>& runs, c10::Device device);

}  // namespace deepspeed::optim
