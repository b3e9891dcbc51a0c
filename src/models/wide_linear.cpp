#include "models/wide_linear.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>

#include "base/log.h"
#include "base/text.h"
#include "deepspeed/comm.h"
#include "deepspeed/error.h"
#include "deepspeed/models.h"

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

namespace {

enum class Products : int { kUnknown, kNative, kFp32 };
std::atomic<Products> chosen = Products::kUnknown;

bool cpu_has(const char* flag) {
  const auto flags = at::cpu::get_cpu_capabilities();
  const auto found = flags.find(flag);
  return found != flags.end() && found->second.isBool() && found->second.toBool();
}

// Milliseconds of the fastest of some repetitions.
double fastest(const std::function<void()>& body) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 6; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

Products choose() {
  const char* wish = std::getenv("DS_BF16_PRODUCTS");
  const std::string text = wish ? wish : "";
  if (text == "native") return Products::kNative;
  if (text == "fp32") return Products::kFp32;
  if (!text.empty() && text != "auto") {
    throw Error(ErrorCode::kEnvironment, "models", base::str("DS_BF16_PRODUCTS: got \"", text, "\", allowed auto, native, fp32"));
  }
  if (!cpu_has("amx_bf16") && !cpu_has("avx512_bf16")) return Products::kFp32;
  const Bf16Times times = measure_bf16_products(256, 1024);
  // A near tie goes to fp32, which is also the more exact one.
  const Products products = times.native * 1.1 < times.fp32 ? Products::kNative : Products::kFp32;
  base::log_info("bf16 products: ", products == Products::kNative ? "the processor's own" : "in fp32", " (measured ", times.native,
                 " ms against ", times.fp32, " ms; DS_BF16_PRODUCTS=native or fp32 decides instead)");
  return products;
}

}  // namespace

Bf16Times measure_bf16_products(int64_t rows, int64_t n) {
  at::AutoDispatchBelowADInplaceOrView below;
  const Tensor x = at::full({rows, n}, 0.5, at::kBFloat16), weight = at::full({n, n}, 0.25, at::kBFloat16);
  return {fastest([&] { at::linear(x, weight); }), fastest([&] { linear_cpu(x, weight, std::nullopt); })};
}

bool has_fast_bf16() {
  if (chosen.load() == Products::kUnknown) chosen = choose();
  return chosen.load() == Products::kNative;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const bool widen = x.device().is_cpu() && x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16 && !has_fast_bf16();
  if (!widen) return at::linear(x, weight, bias);
  return linear_operator().call(x, weight, bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
}

}  // namespace deepspeed::models

namespace deepspeed {

void choose_bf16_products(Communicator& communicator) {
  const at::Tensor native = at::full({1}, communicator.rank() == 0 && models::has_fast_bf16() ? 1.0 : 0.0);
  communicator.broadcast(native, 0, "bf16 products")->wait();
  models::chosen = native.item<float>() > 0 ? models::Products::kNative : models::Products::kFp32;
}

}  // namespace deepspeed
