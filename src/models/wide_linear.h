// Linear layers of bf16 weights on CPUs that have no fast bf16 arithmetic.
//
// torch's bf16 products fall back to loops of one element at a time where the CPU lacks 16-bit instructions: tens of times slower than fp32. Here
// bf16 blocks are widened and multiplied in fp32; results are rounded once, as such instructions would do.
#pragma once

#include <ATen/core/Tensor.h>

namespace deepspeed::models {

// Matrix instructions for bf16: torch's own products are faster than fp32 then.
bool has_fast_bf16();

// x [..., in] times weight [out, in] transposed, plus bias [out] (may be undefined). For any dtype and device: takes torch's own product where that
// is the better one.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace deepspeed::models
