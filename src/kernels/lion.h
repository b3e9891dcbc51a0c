// Lion in one pass over a run of memory.
//
// Source: Chen et al., "Symbolic discovery of optimization algorithms" (arXiv:2302.06675). With g the gradient times `grad_scale`:
//   p -= lr wd p;  p -= lr sign(b1 m + (1 - b1) g);  m = b2 m + (1 - b2) g
// The sign of zero is its sign bit, +1 for a parameter that has never had a gradient: DeepSpeed's kernels do so, the paper leaves it at 0.
// Moves 20 bytes per element (reads p, g, m; writes p, m) and 2 more when a 16-bit copy is written.
#pragma once

#include <cstddef>

#include "kernels/blocks.h"

namespace deepspeed::kernels {

struct LionStep {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double weight_decay = 0.0;
  double grad_scale = 1.0;
};

// parameter[n] and moment[n] are updated in place; gradient[n] is read. `copy` receives the new parameters.
void lion(float* parameter, const float* gradient, float* moment, HalfCopy copy, size_t n, const LionStep& step);

// The same in long double, element by element: what the tests compare with.
void lion_reference(float* parameter, const float* gradient, float* moment, size_t n, const LionStep& step);

}  // namespace deepspeed::kernels
