#include "optim/flat_adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include "kernels/adam.h"
#include "optim/run_memory.h"

namespace deepspeed::optim {
namespace {

// Accelerators: torch's fused kernels. They always correct the bias; a huge step count makes both corrections 1.
void update_on_accelerator(const RunUpdate& u, at::Tensor moment, at::Tensor variance, const AdamOptions& options) {
  constexpr double kNoCorrection = 1e9;
  const at::Tensor scaled = u.grad_scale == 1.0 ? u.gradient : u.gradient.mul(u.grad_scale);
  const auto count = at::full({}, options.bias_correction ? static_cast<double>(u.step) : kNoCorrection, u.master.options());
  const std::vector<at::Tensor> p{u.master}, g{scaled}, m{moment}, v{variance}, none, t{count};
  const auto& s = u.group;
  if (options.decoupled) {
    at::_fused_adamw_(p, g, m, v, none, t, s.lr, s.beta1, s.beta2, s.weight_decay, s.eps, /*amsgrad=*/false, /*maximize=*/false);
  } else {
    at::_fused_adam_(p, g, m, v, none, t, s.lr, s.beta1, s.beta2, s.weight_decay, s.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
  if (u.half_copy.defined()) u.half_copy.copy_(u.master);
}

}  // namespace

void FlatAdam::update(const RunUpdate& u) {
  at::Tensor& moment = states_.get(u.run, 0);
  at::Tensor& variance = states_.get(u.run, 1);
  if (!u.master.is_cpu()) return update_on_accelerator(u, moment, variance, options_);
  const kernels::AdamStep step{
      u.group.lr, u.group.beta1, u.group.beta2, u.group.eps, u.group.weight_decay, options_.decoupled, options_.bias_correction,
      u.step,     u.grad_scale};
  float* m = memory_of(moment);
  float* v = memory_of(variance);
  over_run(u, [&](float* p, const float* g, kernels::HalfCopy copy, size_t begin, size_t count) {
    kernels::adam(p, g, m + begin, v + begin, copy, count, step);
  });
}

}  // namespace deepspeed::optim
