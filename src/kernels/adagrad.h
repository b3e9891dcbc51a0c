// Adagrad in one pass over a run of memory.
//
// Source: Duchi, Hazan and Singer, "Adaptive subgradient methods" (JMLR 12, 2011). With g the gradient times `grad_scale`:
//   d = g + wd p;  s += d^2;  p -= lr / (1 + (t - 1) lr_decay) * d / (sqrt(s) + eps)
// With `raw_numerator` the last line has g in place of d, which is what DeepSpeed's kernel for offloaded optimizers does.
// Moves 20 bytes per element (reads p, g, s; writes p, s) and 2 more when a 16-bit copy is written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"

namespace deepspeed::kernels {

struct AdagradStep {
  double lr = 1e-2;
  double lr_decay = 0.0;
  double eps = 1e-10;
  double weight_decay = 0.0;
  bool raw_numerator = false;
  int64_t step = 1;  // 1 for the first update
  double grad_scale = 1.0;
};

// parameter[n] and square_sum[n] are updated in place; gradient[n] is read. `copy` receives the new parameters.
void adagrad(float* parameter, const float* gradient, float* square_sum, HalfCopy copy, size_t n, const AdagradStep& step);

// The same in long double, element by element: what the tests compare with.
void adagrad_reference(float* parameter, const float* gradient, float* square_sum, size_t n, const AdagradStep& step);

}  // namespace deepspeed::kernels
