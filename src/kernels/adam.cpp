#include "kernels/adam.h"

#include <algorithm>
#include <cmath>

#include "kernels/simd.h"

namespace deepspeed::kernels {
namespace {

struct Factors {
  float rest1, rest2, eps, scale, inverse_correction, l2;
  double step_size, decay;
};

float narrow(double value) { return static_cast<float>(value); }

Factors factors_of(const AdamStep& s) {
  double correction1 = 1.0, correction2 = 1.0;
  if (s.bias_correction) {
    correction1 = 1.0 - std::pow(s.beta1, static_cast<double>(s.step));
    correction2 = 1.0 - std::pow(s.beta2, static_cast<double>(s.step));
  }
  return {.rest1 = narrow(1.0 - s.beta1),
          .rest2 = narrow(1.0 - s.beta2),
          .eps = narrow(s.eps),
          .scale = narrow(s.grad_scale),
          .inverse_correction = narrow(1.0 / std::sqrt(correction2)),
          .l2 = s.decoupled ? 0.0f : narrow(s.weight_decay),
          .step_size = s.lr / correction1,
          .decay = s.decoupled ? s.lr * s.weight_decay : 0.0};
}

// In double up to one rounding: the kernel waits for memory, so this costs no time, and it keeps the last digit of a parameter right.
inline float after_step(float parameter, float direction, const Factors& f) {
  const double value = parameter;
  return static_cast<float>(value - (f.decay * value + f.step_size * static_cast<double>(direction)));
}

// Factors by value: the compiler need not fear that the stores change them. No factor near 1 (1 - lr wd, a beta) is rounded to fp32: it would be wrong
// in the same direction at every step, which adds up. What is small is, and the product is subtracted.
DS_SIMD void adam_loop(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, size_t n, Factors f) {
  for (size_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.scale + f.l2 * p[i];
    const float moment = (m[i] - f.rest1 * m[i]) + f.rest1 * gradient;
    const float variance = (v[i] - f.rest2 * v[i]) + f.rest2 * gradient * gradient;
    m[i] = moment;
    v[i] = variance;
    const float direction = moment / (__builtin_sqrtf(variance) * f.inverse_correction + f.eps);
    p[i] = after_step(p[i], direction, f);
  }
}

DS_SIMD void amsgrad_loop(float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v, float* __restrict top,
                          size_t n, Factors f) {
  for (size_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.scale + f.l2 * p[i];
    const float moment = (m[i] - f.rest1 * m[i]) + f.rest1 * gradient;
    const float variance = (v[i] - f.rest2 * v[i]) + f.rest2 * gradient * gradient;
    const float largest = top[i] > variance ? top[i] : variance;
    m[i] = moment;
    v[i] = variance;
    top[i] = largest;
    const float direction = moment / (__builtin_sqrtf(largest) * f.inverse_correction + f.eps);
    p[i] = after_step(p[i], direction, f);
  }
}

}  // namespace

void adam(float* parameter, const float* gradient, float* moment, float* variance, HalfCopy copy, size_t n, const AdamStep& s,
          float* largest) {
  const Factors f = factors_of(s);
  update_in_blocks(parameter, copy, n, [&](size_t begin, size_t count) {
    if (largest) {
      amsgrad_loop(parameter + begin, gradient + begin, moment + begin, variance + begin, largest + begin, count, f);
    } else {
      adam_loop(parameter + begin, gradient + begin, moment + begin, variance + begin, count, f);
    }
  });
}

void adam_reference(float* parameter, const float* gradient, float* moment, float* variance, size_t n, const AdamStep& s, float* largest) {
  using Real = long double;
  const Real beta1 = s.beta1, beta2 = s.beta2, t = static_cast<Real>(s.step);
  const Real correction1 = s.bias_correction ? 1 - std::pow(beta1, t) : 1;
  const Real correction2 = s.bias_correction ? 1 - std::pow(beta2, t) : 1;
  for (size_t i = 0; i < n; ++i) {
    Real p = parameter[i];
    Real g = static_cast<Real>(gradient[i]) * s.grad_scale;
    if (s.decoupled) {
      p -= static_cast<Real>(s.lr) * s.weight_decay * p;
    } else {
      g += s.weight_decay * p;
    }
    const Real m = beta1 * moment[i] + (1 - beta1) * g;
    const Real v = beta2 * variance[i] + (1 - beta2) * g * g;
    Real top = v;
    if (largest) {
      top = std::max<Real>(v, largest[i]);
      largest[i] = static_cast<float>(top);
    }
    p -= s.lr / correction1 * m / (std::sqrt(top) / std::sqrt(correction2) + s.eps);
    moment[i] = static_cast<float>(m);
    variance[i] = static_cast<float>(v);
    parameter[i] = static_cast<float>(p);
  }
}

}  // namespace deepspeed::kernels
