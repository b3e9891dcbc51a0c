// output[n] (float32) = (accumulate ? output : 0) + the sum, in order, of the `slices` runs of input[slices * n]. On the CPU one vectorised pass.
#pragma once

#include <ATen/core/Tensor.h>

namespace deepspeed::comm {

void sum_slices(at::Tensor output, const at::Tensor& input, int slices, bool accumulate);

}  // namespace deepspeed::comm
