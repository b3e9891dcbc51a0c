// Linear layers of bf16 weights on CPUs that have no fast bf16 arithmetic.
//
// torch's bf16 products fall back to loops of one element at a time where the CPU lacks 16-bit instructions: tens of times slower than fp32. Here
// bf16 blocks are widened and multiplied in fp32; results are rounded once, as such instructions would do.
#pragma once

#include <ATen/core/Tensor.h>

namespace deepspeed::models {

// Whether torch's own bf16 products are the faster way. Where the CPU has no bf16 instructions they never are; with such instructions both ways are measured
// once (AVX-512's dot product runs at half the rate of fp32 on some machines, matrix units at many times of it). DS_BF16_PRODUCTS=native or fp32
// decides instead. Ranks of a job agree by choose_bf16_products() (deepspeed/models.h), as the two ways round differently.
bool has_fast_bf16();

// Milliseconds of a product of [rows, n] and [n, n] in bf16, the fastest of some: by torch's own kernel, and in fp32.
struct Bf16Times {
  double native = 0, fp32 = 0;
};
Bf16Times measure_bf16_products(int64_t rows, int64_t n);

// x [..., in] times weight [out, in] transposed, plus bias [out] (may be undefined). For any dtype and device: takes torch's own product where that
// is the better one.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace deepspeed::models
