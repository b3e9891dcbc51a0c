#include "kernels/adagrad.h"

#include <cmath>

#include "kernels/simd.h"

namespace deepspeed::kernels {
namespace {

DS_SIMD void adagrad_loop(float* __restrict p, const float* __restrict g, float* __restrict s, size_t n, float step_size, float eps,
                          float decay, float numerator_decay, float scale) {
  for (size_t i = 0; i < n; ++i) {
    const float gradient = g[i] * scale;
    const float decayed = gradient + decay * p[i];
    const float sum = s[i] + decayed * decayed;
    s[i] = sum;
    p[i] -= step_size * (gradient + numerator_decay * p[i]) / (__builtin_sqrtf(sum) + eps);
  }
}

double step_size_of(const AdagradStep& s) { return s.lr / (1.0 + static_cast<double>(s.step - 1) * s.lr_decay); }

}  // namespace

void adagrad(float* parameter, const float* gradient, float* square_sum, HalfCopy copy, size_t n, const AdagradStep& s) {
  const auto step_size = static_cast<float>(step_size_of(s)), eps = static_cast<float>(s.eps);
  const auto decay = static_cast<float>(s.weight_decay), scale = static_cast<float>(s.grad_scale);
  update_in_blocks(parameter, copy, n, [&](size_t begin, size_t count) {
    adagrad_loop(parameter + begin, gradient + begin, square_sum + begin, count, step_size, eps, decay, s.raw_numerator ? 0.0f : decay,
                 scale);
  });
}

void adagrad_reference(float* parameter, const float* gradient, float* square_sum, size_t n, const AdagradStep& s) {
  using Real = long double;
  const Real step_size = static_cast<Real>(s.lr) / (1 + static_cast<Real>(s.step - 1) * s.lr_decay);
  for (size_t i = 0; i < n; ++i) {
    const Real g = static_cast<Real>(gradient[i]) * s.grad_scale;
    const Real decayed = g + static_cast<Real>(s.weight_decay) * parameter[i];
    const Real sum = square_sum[i] + decayed * decayed;
    square_sum[i] = static_cast<float>(sum);
    parameter[i] = static_cast<float>(parameter[i] - step_size * (s.raw_numerator ? g : decayed) / (std::sqrt(sum) + s.eps));
  }
}

}  // namespace deepspeed::kernels
