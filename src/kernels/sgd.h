// Stochastic gradient descent in one pass over a run of memory, as torch.optim.SGD defines it.
//
// With g the gradient times `grad_scale`:
//   d = g + wd p;  without momentum: p -= lr d
//   m = d in the first step, later mu m + (1 - dampening) d;  p -= lr m, with nesterov p -= lr (d + mu m)
// Moves 12 bytes per element (20 with momentum) and 2 more when a 16-bit copy is written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"

namespace deepspeed::kernels {

struct SgdStep {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  int64_t step = 1;  // 1 for the first update
  double grad_scale = 1.0;
};

// parameter[n] and, unless `momentum` is 0, buffer[n] are updated in place; gradient[n] is read. `copy` receives the new parameters.
void sgd(float* parameter, const float* gradient, float* buffer, HalfCopy copy, size_t n, const SgdStep& step);

// The same in long double, element by element: what the tests compare with.
void sgd_reference(float* parameter, const float* gradient, float* buffer, size_t n, const SgdStep& step);

}  // namespace deepspeed::kernels
