// LAMB over runs of memory, in two passes: the step of a parameter depends on two norms of all of it, which may lie on several ranks.
//
// Source: You et al., "Large batch optimization for deep learning" (arXiv:1904.00962), in DeepSpeed's form. With g the gradient times `grad_scale`:
//   first pass:   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  u = m / (sqrt(v) + eps) + wd p;  sums of p^2 and u^2
//   between:      the caller adds up the sums of each parameter over its pieces; trust = |p| / |u| within [min, max], 1 if a norm is 0
//   second pass:  p -= lr sqrt(1 - b2^t) / (1 - b1^t) * trust * u; without bias correction p -= lr trust u
// u is computed again in the second pass: that costs less than keeping it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/blocks.h"

namespace deepspeed::kernels {

struct LambStep {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool eps_inside_sqrt = false;  // u = m / sqrt(v + eps) + wd p
  bool bias_correction = true;
  double min_trust = 0.01, max_trust = 10.0;
  int64_t step = 1;         // 1 for the first update
  double grad_scale = 1.0;  // unscaling, averaging and clipping together
};

struct LambSums {
  double parameter = 0, update = 0;  // of squares
};

// First pass over a piece of one parameter. Double sums, in the order of the elements.
LambSums lamb_moments(const float* parameter, const float* gradient, float* moment, float* variance, size_t n, const LambStep& step);

double lamb_trust(const LambSums& whole_parameter, const LambStep& step);
// Factor of u in the second pass.
double lamb_step_size(const LambStep& step, double trust);

// Second pass. `copy` receives the new parameters.
void lamb_apply(float* parameter, const float* moment, const float* variance, HalfCopy copy, size_t n, const LambStep& step, double trust);

// One whole parameter in long double: what the tests compare with. Returns its trust ratio.
double lamb_reference(float* parameter, const float* gradient, float* moment, float* variance, size_t n, const LambStep& step);

}  // namespace deepspeed::kernels
