// Sums and norms over runs of memory.
#pragma once

#include <cstddef>

#include "deepspeed/config.h"

namespace deepspeed::kernels {

// out[i] = (accumulate ? out[i] : 0) + sum over s of in[s * stride + i], in the order of s and in fp32; `in` holds `slices` runs of `n`
// elements of `type`, `stride` elements apart. One pass over the inputs.
void sum_slices(float* out, const void* in, DataType type, size_t slices, size_t stride, size_t n, bool accumulate);
// The same over runs that lie anywhere: in[s][i].
void sum_slices(float* out, const void* const* in, DataType type, size_t slices, size_t n, bool accumulate);

struct SquareSum {
  double sum = 0;      // of squares; meaningless when !finite
  bool finite = true;  // no NaN and no infinity among the elements, tested element by element
};

// Sum of squares in double, whatever the thread count: blocks of fixed size are summed in order.
SquareSum square_sum(const float* in, size_t n);

}  // namespace deepspeed::kernels
