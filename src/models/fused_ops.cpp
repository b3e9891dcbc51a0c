#include "models/fused_ops.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "base/text.h"
#include "deepspeed/error.h"
#include "models/fused_kernels.h"
#include "models/op_support.h"

namespace deepspeed::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRowsPerBlock = 64;  // of a partial sum over rows: fixed, so that the thread count does not change results

// --- rms_norm

std::tuple<Tensor, Tensor> rms_norm_cpu(const Tensor& input, const Tensor& weight, double eps) {
  const Tensor x = input.contiguous();
  const int64_t n = x.size(-1), rows = n > 0 ? x.numel() / n : 0;
  Tensor out = at::empty_like(x);
  Tensor reciprocal = at::empty({rows}, x.options().dtype(at::kFloat));
  with_elements(x.scalar_type(), [&](auto* type) {
    const auto *from = data(x, type), *w = data(weight, type);
    auto* to = data(out, type);
    auto* r = reciprocal.mutable_data_ptr<float>();
    at::parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        r[i] = rms_norm_row(to + i * n, from + i * n, w, static_cast<size_t>(n), static_cast<float>(eps));
      }
    });
  });
  return {out, reciprocal};
}

std::tuple<Tensor, Tensor> rms_norm_backward_cpu(const Tensor& grad_out, const Tensor& input, const Tensor& weight,
                                                 const Tensor& reciprocal) {
  const Tensor x = input.contiguous(), grad = grad_out.contiguous();
  const int64_t n = x.size(-1), rows = n > 0 ? x.numel() / n : 0, blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  Tensor grad_x = at::empty_like(x);
  Tensor partial = at::zeros({blocks, n}, x.options().dtype(at::kFloat));
  with_elements(x.scalar_type(), [&](auto* type) {
    const auto *from = data(x, type), *w = data(weight, type), *g = data(grad, type);
    auto* to = data(grad_x, type);
    const auto* r = reciprocal.const_data_ptr<float>();
    auto* sums = partial.mutable_data_ptr<float>();
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * kRowsPerBlock; i < std::min(rows, end * kRowsPerBlock); ++i) {
        rms_norm_backward_row(to + i * n, sums + i / kRowsPerBlock * n, g + i * n, from + i * n, w, static_cast<size_t>(n), r[i]);
      }
    });
  });
  return {grad_x, partial.sum(0).to(weight.scalar_type())};
}

std::tuple<Tensor, Tensor> call_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("ds_models::rms_norm", "")
                             .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, double)>();
  return op.call(x, weight, eps);
}

std::tuple<Tensor, Tensor> call_rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& reciprocal) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("ds_models::rms_norm_backward", "")
                             .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, const Tensor&)>();
  return op.call(grad, x, weight, reciprocal);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight, double eps) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [out, reciprocal] = call_rms_norm(x, weight, eps);
    context->save_for_backward({x, weight, reciprocal});
    context->mark_non_differentiable({reciprocal});
    return {out, reciprocal};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    auto [grad_x, grad_weight] = call_rms_norm_backward(grads[0], saved[0], saved[1], saved[2]);
    return {grad_x, grad_weight, Tensor()};
  }
};

std::tuple<Tensor, Tensor> rms_norm_autograd(const Tensor& x, const Tensor& weight, double eps) {
  const variable_list out = RmsNorm::apply(x, weight, eps);
  return {out[0], out[1]};
}

// --- rotate

Tensor rotate_cpu(const Tensor& x, const Tensor& cos, const Tensor& sin, double sign) {
  const int64_t batch = x.size(0), seq = x.size(1), heads = x.size(2), dim = x.size(3), half = dim / 2;
  const Tensor source = x.stride(3) == 1 ? x : x.contiguous();
  Tensor out = at::empty({batch, seq, heads, dim}, x.options());
  with_elements(x.scalar_type(), [&](auto* type) {
    const auto *from = data(source, type), *c = data(cos, type), *s = data(sin, type);
    auto* to = data(out, type);
    const int64_t step_b = source.stride(0), step_s = source.stride(1), step_h = source.stride(2);
    at::parallel_for(0, batch * seq, grain(heads * dim), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / seq, p = i % seq;
        for (int64_t h = 0; h < heads; ++h) {
          rotate_row(to + (i * heads + h) * dim, from + b * step_b + p * step_s + h * step_h, c + p * half, s + p * half,
                     static_cast<size_t>(half), static_cast<float>(sign));
        }
      }
    });
  });
  return out;
}

struct Rotate : torch::autograd::Function<Rotate> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cos, const Tensor& sin, double sign) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({cos, sin});
    context->saved_data["sign"] = sign;
    return rotate_cpu(x, cos, sin, sign);
  }
  // The inverse of a rotation is the rotation back.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    return {rotate_cpu(grads[0], saved[0], saved[1], -context->saved_data["sign"].toDouble()), Tensor(), Tensor(), Tensor()};
  }
};

// --- swiglu

Tensor swiglu_cpu(const Tensor& gate, const Tensor& up) {
  const Tensor g = gate.contiguous(), u = up.contiguous();
  Tensor out = at::empty_like(g);
  with_elements(g.scalar_type(), [&](auto* type) {
    const auto *from_g = data(g, type), *from_u = data(u, type);
    auto* to = data(out, type);
    at::parallel_for(0, g.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
      models::swiglu(to + begin, from_g + begin, from_u + begin, static_cast<size_t>(end - begin));
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> swiglu_backward_cpu(const Tensor& grad, const Tensor& gate, const Tensor& up) {
  const Tensor d = grad.contiguous(), g = gate.contiguous(), u = up.contiguous();
  Tensor grad_gate = at::empty_like(g), grad_up = at::empty_like(u);
  with_elements(g.scalar_type(), [&](auto* type) {
    const auto *from_d = data(d, type), *from_g = data(g, type), *from_u = data(u, type);
    auto *to_g = data(grad_gate, type), *to_u = data(grad_up, type);
    at::parallel_for(0, g.numel(), kElementsPerTask, [&](int64_t begin, int64_t end) {
      swiglu_backward(to_g + begin, to_u + begin, from_d + begin, from_g + begin, from_u + begin, static_cast<size_t>(end - begin));
    });
  });
  return {grad_gate, grad_up};
}

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({gate, up});
    return swiglu_cpu(gate, up);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    auto [grad_gate, grad_up] = swiglu_backward_cpu(grads[0], saved[0], saved[1]);
    return {grad_gate, grad_up};
  }
};

// --- cross entropy

// Loss and, per row, the logarithm of the softmax's denominator.
std::tuple<Tensor, Tensor> cross_entropy_cpu(const Tensor& logits, const Tensor& labels) {
  const int64_t rows = logits.size(0), n = logits.size(1);
  Tensor denominators = at::empty({rows}, logits.options().dtype(at::kFloat));
  Tensor loss = at::empty({}, logits.options().dtype(at::kFloat));
  const int64_t* label = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    if (label[i] < 0 || label[i] >= n) {
      throw Error(ErrorCode::kDataFormat, "models", base::str("token id: got ", label[i], ", allowed 0 to ", n - 1));
    }
  }
  with_elements(logits.scalar_type(), [&](auto* type) {
    const auto* x = data(logits, type);
    auto* d = denominators.mutable_data_ptr<float>();
    at::parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) d[i] = log_sum_exp(x + i * n, static_cast<size_t>(n));
    });
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) {
      float own;
      if constexpr (std::is_same_v<decltype(type), float*>) {
        own = x[i * n + label[i]];
      } else {
        own = static_cast<float>(c10::BFloat16(x[i * n + label[i]], c10::BFloat16::from_bits()));
      }
      sum += static_cast<double>(d[i]) - static_cast<double>(own);
    }
    *loss.mutable_data_ptr<float>() = static_cast<float>(sum / static_cast<double>(rows));
  });
  return {loss, denominators};
}

// Turns `logits` into their gradient.
void cross_entropy_backward_cpu(const Tensor& logits, const Tensor& labels, const Tensor& denominators, float scale) {
  const int64_t rows = logits.size(0), n = logits.size(1);
  with_elements(logits.scalar_type(), [&](auto* type) {
    auto* x = data(logits, type);
    const auto* d = denominators.const_data_ptr<float>();
    const auto* label = labels.const_data_ptr<int64_t>();
    at::parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        // The label's own element is done apart: rounding p first would cost it most of its digits.
        auto& own = x[i * n + label[i]];
        if constexpr (std::is_same_v<decltype(type), float*>) {
          const float at_label = scale * (std::exp(own - d[i]) - 1.0f);
          scaled_softmax(x + i * n, static_cast<size_t>(n), d[i], scale);
          own = at_label;
        } else {
          const float logit = static_cast<float>(c10::BFloat16(own, c10::BFloat16::from_bits()));
          scaled_softmax(x + i * n, static_cast<size_t>(n), d[i], scale);
          own = c10::BFloat16(scale * (std::exp(logit - d[i]) - 1.0f)).x;
        }
      }
    });
  });
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& labels) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [loss, denominators] = cross_entropy_cpu(logits, labels);
    context->save_for_backward({logits, labels, denominators});
    return loss;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (context->saved_data.count("done") > 0) {
      throw Error(ErrorCode::kUsage, "models", "backward through the loss: got a second call, allowed one (its logits' memory is reused)");
    }
    context->saved_data["done"] = true;
    const auto saved = context->get_saved_variables();
    at::AutoDispatchBelowADInplaceOrView below;
    Tensor logits = saved[0].detach();
    cross_entropy_backward_cpu(logits, saved[1], saved[2], grads[0].item<float>() / static_cast<float>(logits.size(0)));
    return {logits, Tensor()};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(ds_models, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  library.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor reciprocal) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(ds_models, CPU, library) {
  library.impl("rms_norm", rms_norm_cpu);
  library.impl("rms_norm_backward", rms_norm_backward_cpu);
}

TORCH_LIBRARY_IMPL(ds_models, AutogradCPU, library) { library.impl("rms_norm", rms_norm_autograd); }

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  if (fusable(x) && weight.scalar_type() == x.scalar_type()) return std::get<0>(call_rms_norm(x, weight, eps));
  const Tensor wide = widened(x);
  const Tensor normed = wide * (wide.pow(2).mean(-1, true) + eps).rsqrt();
  return weight * normed.to(x.scalar_type());
}

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  // Under autocast x has another type than the stream that the table was made for.
  if (fusable(x)) return Rotate::apply(x, cos.to(x.scalar_type()), sin.to(x.scalar_type()), 1.0);
  const int64_t half = x.size(3) / 2;
  const Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
  return at::cat({a * c - b * s, b * c + a * s}, 3);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return fusable(gate) && gate.scalar_type() == up.scalar_type() ? SwiGlu::apply(gate, up) : at::silu(gate) * up;
}

Tensor mean_cross_entropy(Tensor logits, const Tensor& labels) {
  if (fusable(logits) && logits.is_contiguous() && logits.size(0) > 0) return CrossEntropy::apply(logits, labels.contiguous());
  return at::cross_entropy_loss(widened(logits), labels);
}

}  // namespace deepspeed::models
