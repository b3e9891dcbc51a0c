#include "kernels/adam.h"

#include <cmath>

#include "kernels/half.h"
#include "kernels/simd.h"

namespace deepspeed::kernels {
namespace {

struct Factors {
  float step_size, inverse_correction, keep, l2;
};

Factors factors_of(const AdamStep& s) {
  double correction1 = 1.0, correction2 = 1.0;
  if (s.bias_correction) {
    correction1 = 1.0 - std::pow(static_cast<double>(s.beta1), static_cast<double>(s.step));
    correction2 = 1.0 - std::pow(static_cast<double>(s.beta2), static_cast<double>(s.step));
  }
  const double lr = s.lr;
  return {static_cast<float>(lr / correction1), static_cast<float>(1.0 / std::sqrt(correction2)),
          static_cast<float>(s.decoupled ? 1.0 - lr * s.weight_decay : 1.0), s.decoupled ? 0.0f : s.weight_decay};
}

DS_SIMD void adam_loop(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, size_t n, float beta1,
                       float beta2, float eps, float scale, float step_size, float inverse_correction, float keep, float l2) {
  const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
  for (size_t i = 0; i < n; ++i) {
    const float gradient = g[i] * scale + l2 * p[i];
    const float moment = beta1 * m[i] + rest1 * gradient;
    const float variance = beta2 * v[i] + rest2 * gradient * gradient;
    m[i] = moment;
    v[i] = variance;
    p[i] = p[i] * keep - step_size * moment / (__builtin_sqrtf(variance) * inverse_correction + eps);
  }
}

DS_SIMD void round_loop(uint16_t* __restrict out, const float* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = float_to_bf16(in[i]);
}

}  // namespace

void adam(float* parameter, const float* gradient, float* moment, float* variance, uint16_t* half_copy, size_t n, const AdamStep& s) {
  const Factors f = factors_of(s);
  // Blocks keep the fresh parameters in cache for the rounding pass.
  constexpr size_t kBlock = 4096;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = n - begin < kBlock ? n - begin : kBlock;
    adam_loop(parameter + begin, gradient + begin, moment + begin, variance + begin, count, s.beta1, s.beta2, s.eps, s.grad_scale,
              f.step_size, f.inverse_correction, f.keep, f.l2);
    if (half_copy) round_loop(half_copy + begin, parameter + begin, count);
  }
}

void adam_reference(float* parameter, const float* gradient, float* moment, float* variance, size_t n, const AdamStep& s) {
  const double correction1 = s.bias_correction ? 1.0 - std::pow(static_cast<double>(s.beta1), static_cast<double>(s.step)) : 1.0;
  const double correction2 = s.bias_correction ? 1.0 - std::pow(static_cast<double>(s.beta2), static_cast<double>(s.step)) : 1.0;
  for (size_t i = 0; i < n; ++i) {
    double p = parameter[i];
    double g = static_cast<double>(gradient[i]) * s.grad_scale;
    if (s.decoupled) {
      p -= static_cast<double>(s.lr) * s.weight_decay * p;
    } else {
      g += static_cast<double>(s.weight_decay) * p;
    }
    const double m = s.beta1 * static_cast<double>(moment[i]) + (1.0 - s.beta1) * g;
    const double v = s.beta2 * static_cast<double>(variance[i]) + (1.0 - s.beta2) * g * g;
    p -= s.lr / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + s.eps);
    moment[i] = static_cast<float>(m);
    variance[i] = static_cast<float>(v);
    parameter[i] = static_cast<float>(p);
  }
}

}  // namespace deepspeed::kernels
