#include "optim/flat_adam.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"
#include "kernels/adam.h"

namespace deepspeed::optim {
namespace {

kernels::AdamStep kernel_step(const AdamSettings& s, int64_t step, double grad_scale) {
  return {static_cast<float>(s.lr),
          static_cast<float>(s.beta1),
          static_cast<float>(s.beta2),
          static_cast<float>(s.eps),
          static_cast<float>(s.weight_decay),
          s.decoupled,
          s.bias_correction,
          step,
          static_cast<float>(grad_scale)};
}

// Accelerators: torch's fused kernels. They always correct the bias; a huge step count makes both corrections 1.
void update_on_accelerator(at::Tensor master, const at::Tensor& gradient, at::Tensor moment, at::Tensor variance, const AdamSettings& s,
                           int64_t step, double grad_scale) {
  constexpr double kNoCorrection = 1e9;
  at::Tensor scaled = grad_scale == 1.0 ? gradient : gradient.mul(grad_scale);
  const auto count = at::full({}, s.bias_correction ? static_cast<double>(step) : kNoCorrection, master.options().dtype(at::kFloat));
  const std::vector<at::Tensor> p{master}, g{scaled}, m{moment}, v{variance}, none, t{count};
  if (s.decoupled) {
    at::_fused_adamw_(p, g, m, v, none, t, s.lr, s.beta1, s.beta2, s.weight_decay, s.eps, /*amsgrad=*/false, /*maximize=*/false);
  } else {
    at::_fused_adam_(p, g, m, v, none, t, s.lr, s.beta1, s.beta2, s.weight_decay, s.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

}  // namespace

FlatAdam::FlatAdam(const std::vector<int64_t>& run_elements, c10::Device device) {
  for (const int64_t elements : run_elements) {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    moments_.push_back(at::zeros({elements}, options));
    variances_.push_back(at::zeros({elements}, options));
  }
}

void FlatAdam::update(size_t run, at::Tensor master, const at::Tensor& gradient, at::Tensor half_copy, const AdamSettings& settings,
                      int64_t step, double grad_scale) {
  at::Tensor& moment = moments_[run];
  at::Tensor& variance = variances_[run];
  const int64_t n = moment.numel();
  DS_CHECK(master.numel() == n && gradient.numel() == n, "run ", n, ", master ", master.numel(), ", gradient ", gradient.numel());
  if (!master.is_cpu()) {
    update_on_accelerator(master, gradient, moment, variance, settings, step, grad_scale);
    if (half_copy.defined()) half_copy.copy_(master);
    return;
  }
  auto* p = master.mutable_data_ptr<float>();
  const auto* g = gradient.const_data_ptr<float>();
  auto* m = moment.mutable_data_ptr<float>();
  auto* v = variance.mutable_data_ptr<float>();
  auto* half = half_copy.defined() ? static_cast<uint16_t*>(half_copy.mutable_data_ptr()) : nullptr;
  const auto kernel = kernel_step(settings, step, grad_scale);
  at::parallel_for(0, n, 32768, [&](int64_t begin, int64_t end) {
    kernels::adam(p + begin, g + begin, m + begin, v + begin, half ? half + begin : nullptr, static_cast<size_t>(end - begin), kernel);
  });
}

}  // namespace deepspeed::optim
