#include "kernels/lion.h"

#include <cmath>

#include "kernels/simd.h"

namespace deepspeed::kernels {
namespace {

DS_SIMD void lion_loop(float* __restrict p, const float* __restrict g, float* __restrict m, size_t n, float beta1, float beta2, float rest1,
                       float rest2, float lr, float keep, float scale) {
  for (size_t i = 0; i < n; ++i) {
    const float gradient = g[i] * scale;
    const float direction = beta1 * m[i] + rest1 * gradient;
    m[i] = beta2 * m[i] + rest2 * gradient;
    p[i] = p[i] * keep - __builtin_copysignf(lr, direction);
  }
}

}  // namespace

void lion(float* parameter, const float* gradient, float* moment, HalfCopy copy, size_t n, const LionStep& s) {
  const auto beta1 = static_cast<float>(s.beta1), beta2 = static_cast<float>(s.beta2), lr = static_cast<float>(s.lr);
  const auto rest1 = static_cast<float>(1.0 - s.beta1), rest2 = static_cast<float>(1.0 - s.beta2);
  const auto keep = static_cast<float>(1.0 - s.lr * s.weight_decay), scale = static_cast<float>(s.grad_scale);
  update_in_blocks(parameter, copy, n, [&](size_t begin, size_t count) {
    lion_loop(parameter + begin, gradient + begin, moment + begin, count, beta1, beta2, rest1, rest2, lr, keep, scale);
  });
}

void lion_reference(float* parameter, const float* gradient, float* moment, size_t n, const LionStep& s) {
  using Real = long double;
  const Real beta1 = s.beta1, beta2 = s.beta2, lr = s.lr;
  for (size_t i = 0; i < n; ++i) {
    const Real g = static_cast<Real>(gradient[i]) * s.grad_scale;
    const Real direction = beta1 * moment[i] + (1 - beta1) * g;
    const Real p = parameter[i] * (1 - lr * s.weight_decay);
    parameter[i] = static_cast<float>(std::signbit(direction) ? p + lr : p - lr);
    moment[i] = static_cast<float>(beta2 * moment[i] + (1 - beta2) * g);
  }
}

}  // namespace deepspeed::kernels
