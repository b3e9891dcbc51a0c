// What the implementations of the models' own operators share.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "models/fused_kernels.h"

namespace deepspeed::models {

inline constexpr int64_t kElementsPerTask = 32768;  // below this a second thread costs more than it brings

// Rows of `row_size` elements that are worth a thread.
inline int64_t grain(int64_t row_size) { return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, row_size)); }

// At least fp32.
inline at::Tensor widened(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

// The kernels have loops for it.
inline bool fusable(const at::Tensor& x) {
  return x.device().is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

// Calls `body` with a null pointer of the type that the kernels use for `type`: float or bf16.
template <typename Body>
void with_elements(at::ScalarType type, Body&& body) {
  if (type == at::kFloat) {
    body(static_cast<float*>(nullptr));
  } else {
    body(static_cast<bf16_bits*>(nullptr));
  }
}

template <typename T>
T* data(const at::Tensor& tensor, const T*) {
  return static_cast<T*>(tensor.data_ptr());
}

}  // namespace deepspeed::models
