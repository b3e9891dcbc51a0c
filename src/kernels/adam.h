// Adam and AdamW in one pass over a run of memory.
//
// Source: Kingma and Ba, "Adam" (arXiv:1412.6980); Loshchilov and Hutter, "Decoupled weight decay regularization" (arXiv:1711.05101).
// With g the gradient times `grad_scale`:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   decoupled: p -= lr wd p first; else g += wd p
//   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps); without bias correction both denominators are 1
// AMSGrad (Reddi and others, "On the convergence of Adam and beyond"): the largest v so far stands in the denominator.
// Moves 28 bytes per element (reads p, g, m, v; writes p, m, v) and 2 more when a 16-bit copy of p is written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"

namespace deepspeed::kernels {

// In double, so that 1 - b2 keeps its digits: 0.999 in float leaves 1 - b2 wrong by 1e-5.
struct AdamStep {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = true;
  bool bias_correction = true;
  int64_t step = 1;         // 1 for the first update
  double grad_scale = 1.0;  // unscaling, averaging and clipping together
};

// parameter[n], moment[n], variance[n] are updated in place; gradient[n] is read. `copy` receives the new parameters. `largest`[n], the largest
// variance so far, makes it AMSGrad.
void adam(float* parameter, const float* gradient, float* moment, float* variance, HalfCopy copy, size_t n, const AdamStep& step,
          float* largest = nullptr);

// The same in long double, element by element: what the tests compare with.
void adam_reference(float* parameter, const float* gradient, float* moment, float* variance, size_t n, const AdamStep& step,
                    float* largest = nullptr);

}  // namespace deepspeed::kernels
