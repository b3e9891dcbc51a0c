#include "kernels/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/cast.h"
#include "kernels/simd.h"

namespace deepspeed::kernels {
namespace {

// Small enough to stay in the first-level cache while several inputs stream by.
constexpr size_t kBlock = 2048;

DS_SIMD void add_block(float* __restrict out, const float* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] += in[i];
}

DS_SIMD void add_two(float* __restrict out, const float* __restrict a, const float* __restrict b, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

// In double the square of a finite float is finite, and so is any sum of them: the sum itself tells whether an element was not.
DS_SIMD double block_squares(const float* __restrict in, size_t n) {
  constexpr size_t kLanes = 16;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const double value = in[i + k];
      lanes[k] += value * value;
    }
  }
  for (; i < n; ++i) lanes[0] += static_cast<double>(in[i]) * in[i];
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

void sum_slices(float* out, const void* in, DataType type, size_t slices, size_t stride, size_t n, bool accumulate) {
  const auto* bytes = static_cast<const std::byte*>(in);
  const size_t width = bytes_of(type);
  std::array<float, kBlock> widened;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    float* target = out + begin;
    size_t first = 0;
    if (!accumulate) {
      if (slices >= 2 && type == DataType::kFloat32) {
        const auto* values = reinterpret_cast<const float*>(in);
        add_two(target, values + begin, values + stride + begin, count);
        first = 2;
      } else if (slices >= 1) {
        cast_to_float(target, bytes + begin * width, type, count);
        first = 1;
      } else {
        std::fill_n(target, count, 0.0f);
      }
    }
    for (size_t s = first; s < slices; ++s) {
      const std::byte* source = bytes + (s * stride + begin) * width;
      if (type == DataType::kFloat32) {
        add_block(target, reinterpret_cast<const float*>(source), count);
      } else {
        cast_to_float(widened.data(), source, type, count);
        add_block(target, widened.data(), count);
      }
    }
  }
}

SquareSum square_sum(const float* in, size_t n) {
  SquareSum result;
  for (size_t begin = 0; begin < n; begin += kBlock) result.sum += block_squares(in + begin, std::min(kBlock, n - begin));
  result.finite = std::isfinite(result.sum);
  return result;
}

}  // namespace deepspeed::kernels
