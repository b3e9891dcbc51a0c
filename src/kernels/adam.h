// Adam and AdamW in one pass over a run of memory.
//
// Source: Kingma and Ba, "Adam" (arXiv:1412.6980); Loshchilov and Hutter, "Decoupled weight decay regularization" (arXiv:1711.05101).
// With g the gradient times `grad_scale`:
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   decoupled: p -= lr wd p first; else g += wd p
//   p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps); without bias correction both denominators are 1
// Moves 28 bytes per element (reads p, g, m, v; writes p, m, v) and 2 more when a 16-bit copy of p is written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepspeed::kernels {

struct AdamStep {
  float lr = 1e-3f;
  float beta1 = 0.9f, beta2 = 0.999f;
  float eps = 1e-8f;
  float weight_decay = 0.0f;
  bool decoupled = true;
  bool bias_correction = true;
  int64_t step = 1;         // 1 for the first update
  float grad_scale = 1.0f;  // unscaling, averaging and clipping together
};

// parameter[n], moment[n], variance[n] are updated in place; gradient[n] is read. `half_copy` (n bfloat16 values, or null) receives the new
// parameters rounded to nearest even.
void adam(float* parameter, const float* gradient, float* moment, float* variance, uint16_t* half_copy, size_t n, const AdamStep& step);

// The same in double precision, element by element: what the tests compare with.
void adam_reference(float* parameter, const float* gradient, float* moment, float* variance, size_t n, const AdamStep& step);

}  // namespace deepspeed::kernels
