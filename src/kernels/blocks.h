// How the optimizer kernels walk over a run: in blocks that stay in cache, so that the 16-bit working copy is rounded from values just written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cast.h"

namespace deepspeed::kernels {

// Where the new parameters go in 16 bit, rounded to nearest even; data null: nowhere.
struct HalfCopy {
  uint16_t* data = nullptr;
  DataType type = DataType::kBFloat16;

  HalfCopy from(size_t begin) const { return {data ? data + begin : nullptr, type}; }
};

// Calls loop(begin, count) for each block of `parameter`[n], then rounds the block.
template <typename Loop>
void update_in_blocks(const float* parameter, HalfCopy copy, size_t n, Loop&& loop) {
  constexpr size_t kBlock = 4096;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    loop(begin, count);
    if (copy.data) cast_from_float(copy.data + begin, copy.type, parameter + begin, count);
  }
}

}  // namespace deepspeed::kernels
