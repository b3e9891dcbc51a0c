#include "optim/flat_adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include "kernels/adam.h"
#include "optim/run_memory.h"

namespace deepspeed::optim {

// Accelerators: torch's fused kernels. They always correct the bias; a huge step count makes both corrections 1.
void update_adam_on_accelerator(const RunUpdate& u, at::Tensor moment, at::Tensor variance, const at::Tensor& largest,
                                const AdamOptions& options) {
  constexpr double kNoCorrection = 1e9;
  const at::Tensor scaled = u.grad_scale == 1.0 ? u.gradient : u.gradient.mul(u.grad_scale);
  const auto count = at::full({}, options.bias_correction ? static_cast<double>(u.step) : kNoCorrection, u.master.options());
  const std::vector<at::Tensor> p{u.master}, g{scaled}, m{moment}, v{variance}, t{count};
  std::vector<at::Tensor> top;
  if (options.amsgrad) top.push_back(largest);
  const auto& s = u.group;
  if (options.decoupled) {
    at::_fused_adamw_(p, g, m, v, top, t, s.lr, s.beta1, s.beta2, s.weight_decay, s.eps, options.amsgrad, /*maximize=*/false);
  } else {
    at::_fused_adam_(p, g, m, v, top, t, s.lr, s.beta1, s.beta2, s.weight_decay, s.eps, options.amsgrad, /*maximize=*/false);
  }
  if (u.half_copy.defined()) u.half_copy.copy_(u.master);
}

namespace {

std::vector<std::string> names_of(const AdamOptions& options) {
  if (options.amsgrad) return {"moment", "variance", "largest_variance"};
  return {"moment", "variance"};
}

}  // namespace

FlatAdam::FlatAdam(const std::vector<RunLayout>& runs, c10::Device device, AdamOptions options)
    : states_(names_of(options), runs, device), options_(options) {}

void FlatAdam::update(const RunUpdate& u) {
  at::Tensor& moment = states_.get(u.run, 0);
  at::Tensor& variance = states_.get(u.run, 1);
  at::Tensor largest = options_.amsgrad ? states_.get(u.run, 2) : at::Tensor();
  if (!u.master.is_cpu()) return update_adam_on_accelerator(u, moment, variance, largest, options_);
  const kernels::AdamStep step{
      u.group.lr, u.group.beta1, u.group.beta2, u.group.eps, u.group.weight_decay, options_.decoupled, options_.bias_correction,
      u.step,     u.grad_scale};
  float* m = memory_of(moment);
  float* v = memory_of(variance);
  float* top = options_.amsgrad ? memory_of(largest) : nullptr;
  over_run(u, [&](float* p, const float* g, kernels::HalfCopy copy, size_t begin, size_t count) {
    kernels::adam(p, g, m + begin, v + begin, copy, count, step, top ? top + begin : nullptr);
  });
}

}  // namespace deepspeed::optim
