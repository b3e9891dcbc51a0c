// The models' pointwise parts as differentiable operators.
//
// On the CPU, for fp32 and bf16, they run the loops of fused_kernels.h; elsewhere they are put together from torch's own operators. What touches a
// weight is an operator of torch's dispatcher ("ds_models::..."), backward too, as engines watch operators to have weights in place (stage 3).
#pragma once

#include <ATen/core/Tensor.h>

namespace deepspeed::models {

// x [..., n], weight [n] of the same dtype.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x [batch, seq, heads, dim]; cos, sin [seq, dim / 2] of the same dtype, without gradient. Result contiguous.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// silu(gate) * up, elementwise.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// Mean over rows of the cross entropy of logits [n, vocab] against labels [n] int64, computed in fp32. Takes `logits` over: backward writes the
// gradient into its memory, so nothing else may use it, and backward runs once.
at::Tensor mean_cross_entropy(at::Tensor logits, const at::Tensor& labels);

}  // namespace deepspeed::models
