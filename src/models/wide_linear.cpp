#include "models/wide_linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

namespace deepspeed::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kWidened = 4 << 20;  // elements of the weight that are widened at a time: 16 MB

// Rows of the weight (output features) widened at a time.
int64_t block_rows(const Tensor& weight) { return std::max<int64_t>(1, kWidened / std::max<int64_t>(1, weight.size(1))); }

Tensor flat(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor linear_cpu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const Tensor wide_x = flat(x).to(at::kFloat);
  const int64_t rows = wide_x.size(0), out_size = weight.size(0), step = block_rows(weight);
  Tensor out = at::empty({rows, out_size}, x.options());
  for (int64_t begin = 0; begin < out_size; begin += step) {
    const int64_t count = std::min(step, out_size - begin);
    const Tensor wide_w = weight.narrow(0, begin, count).to(at::kFloat);
    const bool biased = bias.has_value() && bias->defined();
    out.narrow(1, begin, count)
        .copy_(biased ? at::addmm(bias->narrow(0, begin, count).to(at::kFloat), wide_x, wide_w.t()) : at::mm(wide_x, wide_w.t()));
  }
  auto shape = x.sizes().vec();
  shape.back() = out_size;
  return out.view(shape);
}

// Gradients of x and weight; those not asked for are undefined.
std::tuple<Tensor, Tensor> linear_backward_cpu(const Tensor& grad, const Tensor& x, const Tensor& weight, bool for_x, bool for_weight) {
  const Tensor flat_grad = flat(grad), flat_x = flat(x);
  const int64_t out_size = weight.size(0), step = block_rows(weight);
  const Tensor wide_x = for_weight ? flat_x.to(at::kFloat) : Tensor();
  Tensor sum_x = for_x ? at::zeros(flat_x.sizes(), x.options().dtype(at::kFloat)) : Tensor();
  Tensor grad_weight = for_weight ? at::empty_like(weight) : Tensor();
  for (int64_t begin = 0; begin < out_size; begin += step) {
    const int64_t count = std::min(step, out_size - begin);
    const Tensor wide_grad = flat_grad.narrow(1, begin, count).to(at::kFloat);
    if (for_x) sum_x.addmm_(wide_grad, weight.narrow(0, begin, count).to(at::kFloat));
    if (for_weight) grad_weight.narrow(0, begin, count).copy_(at::mm(wide_grad.t(), wide_x));
  }
  return {for_x ? sum_x.to(x.scalar_type()).view(x.sizes()) : Tensor(), grad_weight};
}

auto linear_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("ds_models::linear", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&)>();
  return op;
}

auto linear_backward_operator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("ds_models::linear_backward", "")
                             .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, bool, bool)>();
  return op;
}

struct WideLinear : torch::autograd::Function<WideLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    context->saved_data["biased"] = bias.has_value() && bias->defined();
    return linear_operator().call(x, weight, bias);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const bool for_bias = context->saved_data["biased"].toBool() && context->needs_input_grad(2);
    auto [grad_x, grad_weight] =
        linear_backward_operator().call(grads[0], saved[0], saved[1], context->needs_input_grad(0), context->needs_input_grad(1));
    const Tensor grad_bias = for_bias ? flat(grads[0]).sum(0, false, at::kFloat).to(at::kBFloat16) : Tensor();
    return {grad_x, grad_weight, grad_bias};
  }
};

Tensor linear_autograd(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return WideLinear::apply(x, weight, bias);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ds_models, library) {
  library.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  library.def("linear_backward(Tensor grad, Tensor x, Tensor weight, bool for_x, bool for_weight) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(ds_models, CPU, library) {
  library.impl("linear", linear_cpu);
  library.impl("linear_backward", linear_backward_cpu);
}

TORCH_LIBRARY_IMPL(ds_models, AutogradCPU, library) { library.impl("linear", linear_autograd); }

// The vector instructions of AVX-512 do not beat fp32.
bool has_fast_bf16() {
  static const bool fast = [] {
    const auto found = at::cpu::get_cpu_capabilities();
    const auto flag = found.find("amx_bf16");
    return flag != found.end() && flag->second.isBool() && flag->second.toBool();
  }();
  return fast;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const bool widen = x.device().is_cpu() && x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16 && !has_fast_bf16();
  if (!widen) return at::linear(x, weight, bias);
  return linear_operator().call(x, weight, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
}

}  // namespace deepspeed::models
