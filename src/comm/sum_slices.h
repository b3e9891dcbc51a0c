// Sums of the ranks' slices on this rank, on all its threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "deepspeed/comm.h"
#include "deepspeed/config.h"

namespace deepspeed::comm {

// output[n] (float32) = (accumulate ? output : 0) + the sum, in order, of the `slices` runs of input[slices * n]. On the CPU one vectorised pass;
// `ready` may be empty.
void sum_slices(at::Tensor output, const at::Tensor& input, int slices, bool accumulate, const PieceReady& ready);

// out[begin + i] for i < count: the same over sources[s][i], of `type`. `begin` is a multiple of kPieceElements.
void sum_in_pieces(float* out, int64_t begin, int64_t count, std::span<const void* const> sources, DataType type, bool accumulate,
                   const PieceReady& ready);

}  // namespace deepspeed::comm
