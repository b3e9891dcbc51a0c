#include "kernels/lamb.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/reduce.h"
#include "kernels/simd.h"

namespace deepspeed::kernels {
namespace {

struct Factors {
  float beta1, beta2, rest1, rest2, inside, outside, decay, scale;  // eps inside and outside the root
};

float narrow(double value) { return static_cast<float>(value); }

Factors factors_of(const LambStep& s) {
  return {.beta1 = narrow(s.beta1),
          .beta2 = narrow(s.beta2),
          .rest1 = narrow(1.0 - s.beta1),
          .rest2 = narrow(1.0 - s.beta2),
          .inside = s.eps_inside_sqrt ? narrow(s.eps) : 0.0f,
          .outside = s.eps_inside_sqrt ? 0.0f : narrow(s.eps),
          .decay = narrow(s.weight_decay),
          .scale = narrow(s.grad_scale)};
}

DS_SIMD void moments_loop(const float* __restrict p, const float* __restrict g, float* __restrict m, float* __restrict v,
                          float* __restrict update, size_t n, Factors f) {
  for (size_t i = 0; i < n; ++i) {
    const float gradient = g[i] * f.scale;
    const float moment = f.beta1 * m[i] + f.rest1 * gradient;
    const float variance = f.beta2 * v[i] + f.rest2 * gradient * gradient;
    m[i] = moment;
    v[i] = variance;
    update[i] = moment / (__builtin_sqrtf(variance + f.inside) + f.outside) + f.decay * p[i];
  }
}

DS_SIMD void apply_loop(float* __restrict p, const float* __restrict m, const float* __restrict v, size_t n, Factors f, float step_size) {
  for (size_t i = 0; i < n; ++i) p[i] -= step_size * (m[i] / (__builtin_sqrtf(v[i] + f.inside) + f.outside) + f.decay * p[i]);
}

}  // namespace

LambSums lamb_moments(const float* parameter, const float* gradient, float* moment, float* variance, size_t n, const LambStep& s) {
  constexpr size_t kBlock = 2048;
  std::array<float, kBlock> update;
  const Factors f = factors_of(s);
  LambSums sums;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    moments_loop(parameter + begin, gradient + begin, moment + begin, variance + begin, update.data(), count, f);
    sums.parameter += square_sum(parameter + begin, count).sum;
    sums.update += square_sum(update.data(), count).sum;
  }
  return sums;
}

double lamb_trust(const LambSums& whole, const LambStep& s) {
  if (!(whole.parameter > 0) || !(whole.update > 0)) return 1.0;
  return std::clamp(std::sqrt(whole.parameter) / std::sqrt(whole.update), s.min_trust, s.max_trust);
}

double lamb_step_size(const LambStep& s, double trust) {
  if (!s.bias_correction) return s.lr * trust;
  const auto t = static_cast<double>(s.step);
  return s.lr * trust * std::sqrt(1.0 - std::pow(s.beta2, t)) / (1.0 - std::pow(s.beta1, t));
}

void lamb_apply(float* parameter, const float* moment, const float* variance, HalfCopy copy, size_t n, const LambStep& s, double trust) {
  const auto step_size = static_cast<float>(lamb_step_size(s, trust));
  const Factors f = factors_of(s);
  update_in_blocks(parameter, copy, n, [&](size_t begin, size_t count) {
    apply_loop(parameter + begin, moment + begin, variance + begin, count, f, step_size);
  });
}

double lamb_reference(float* parameter, const float* gradient, float* moment, float* variance, size_t n, const LambStep& s) {
  using Real = long double;
  const Real beta1 = s.beta1, beta2 = s.beta2;
  const auto update = [&](size_t i) {
    const Real v = variance[i];
    const Real denominator = s.eps_inside_sqrt ? std::sqrt(v + s.eps) : std::sqrt(v) + s.eps;
    return moment[i] / denominator + static_cast<Real>(s.weight_decay) * parameter[i];
  };
  Real parameter_sum = 0, update_sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const Real g = static_cast<Real>(gradient[i]) * s.grad_scale;
    moment[i] = static_cast<float>(beta1 * moment[i] + (1 - beta1) * g);
    variance[i] = static_cast<float>(beta2 * variance[i] + (1 - beta2) * g * g);
    parameter_sum += static_cast<Real>(parameter[i]) * parameter[i];
    update_sum += update(i) * update(i);
  }
  Real trust = 1;
  if (parameter_sum > 0 && update_sum > 0) {
    trust = std::clamp<Real>(std::sqrt(parameter_sum) / std::sqrt(update_sum), s.min_trust, s.max_trust);
  }
  Real step_size = s.lr;
  if (s.bias_correction) {
    step_size *= std::sqrt(1 - std::pow(beta2, static_cast<Real>(s.step))) / (1 - std::pow(beta1, static_cast<Real>(s.step)));
  }
  for (size_t i = 0; i < n; ++i) parameter[i] = static_cast<float>(parameter[i] - step_size * trust * update(i));
  return static_cast<double>(trust);
}

}  // namespace deepspeed::kernels
