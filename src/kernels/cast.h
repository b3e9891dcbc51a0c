// Casts between float32 and the 16-bit types over runs of memory. Source: IEEE 754 and bfloat16 rounding, see half.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "deepspeed/config.h"

namespace deepspeed::kernels {

size_t bytes_of(DataType type);

// out[n] = in[n], out of type `to`. The ranges must not overlap unless they are the same run of the same type.
void cast_from_float(void* out, DataType to, const float* in, size_t n);
void cast_to_float(float* out, const void* in, DataType from, size_t n);

}  // namespace deepspeed::kernels
