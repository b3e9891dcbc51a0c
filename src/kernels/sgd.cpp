#include "kernels/sgd.h"

#include "kernels/simd.h"

namespace deepspeed::kernels {
namespace {

DS_SIMD void plain_loop(float* __restrict p, const float* __restrict g, size_t n, float lr, float decay, float scale) {
  for (size_t i = 0; i < n; ++i) p[i] -= lr * (g[i] * scale + decay * p[i]);
}

// m = old m + fresh d;  p -= lr (of_gradient d + of_buffer m)
DS_SIMD void momentum_loop(float* __restrict p, const float* __restrict g, float* __restrict m, size_t n, float lr, float decay,
                           float scale, float old, float fresh, float of_gradient, float of_buffer) {
  for (size_t i = 0; i < n; ++i) {
    const float gradient = g[i] * scale + decay * p[i];
    const float buffer = old * m[i] + fresh * gradient;
    m[i] = buffer;
    p[i] -= lr * (of_gradient * gradient + of_buffer * buffer);
  }
}

}  // namespace

void sgd(float* parameter, const float* gradient, float* buffer, HalfCopy copy, size_t n, const SgdStep& s) {
  const bool first = s.step <= 1;
  const auto lr = static_cast<float>(s.lr), decay = static_cast<float>(s.weight_decay), scale = static_cast<float>(s.grad_scale);
  const auto momentum = static_cast<float>(s.momentum), fresh = static_cast<float>(1.0 - s.dampening);
  update_in_blocks(parameter, copy, n, [&](size_t begin, size_t count) {
    if (s.momentum == 0) {
      plain_loop(parameter + begin, gradient + begin, count, lr, decay, scale);
    } else {
      momentum_loop(parameter + begin, gradient + begin, buffer + begin, count, lr, decay, scale, first ? 0.0f : momentum,
                    first ? 1.0f : fresh, s.nesterov ? 1.0f : 0.0f, s.nesterov ? momentum : 1.0f);
    }
  });
}

void sgd_reference(float* parameter, const float* gradient, float* buffer, size_t n, const SgdStep& s) {
  using Real = long double;
  for (size_t i = 0; i < n; ++i) {
    Real d = static_cast<Real>(gradient[i]) * s.grad_scale + static_cast<Real>(s.weight_decay) * parameter[i];
    if (s.momentum != 0) {
      const Real momentum = s.momentum;
      const Real m = s.step <= 1 ? d : momentum * buffer[i] + (1 - static_cast<Real>(s.dampening)) * d;
      buffer[i] = static_cast<float>(m);
      d = s.nesterov ? d + momentum * m : m;
    }
    parameter[i] = static_cast<float>(parameter[i] - s.lr * d);
  }
}

}  // namespace deepspeed::kernels
