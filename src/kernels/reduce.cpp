#include "kernels/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

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

void sum_slices(float* out, const void* const* in, DataType type, size_t slices, size_t n, bool accumulate) {
  const size_t width = bytes_of(type);
  std::array<float, kBlock> widened;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    const auto source = [&](size_t s) { return static_cast<const std::byte*>(in[s]) + begin * width; };
    const auto floats = [&](size_t s) { return reinterpret_cast<const float*>(source(s)); };
    float* target = out + begin;
    size_t first = 0;
    if (!accumulate) {
      if (slices >= 2 && type == DataType::kFloat32) {
        add_two(target, floats(0), floats(1), count);
        first = 2;
      } else if (slices >= 1) {
        cast_to_float(target, source(0), type, count);
        first = 1;
      } else {
        std::fill_n(target, count, 0.0f);
      }
    }
    for (size_t s = first; s < slices; ++s) {
      if (type == DataType::kFloat32) {
        add_block(target, floats(s), count);
      } else {
        cast_to_float(widened.data(), source(s), type, count);
        add_block(target, widened.data(), count);
      }
    }
  }
}

void sum_slices(float* out, const void* in, DataType type, size_t slices, size_t stride, size_t n, bool accumulate) {
  std::vector<const void*> runs;
  for (size_t s = 0; s < slices; ++s) runs.push_back(static_cast<const std::byte*>(in) + s * stride * bytes_of(type));
  sum_slices(out, runs.data(), type, slices, n, accumulate);
}

SquareSum square_sum(const float* in, size_t n) {
  SquareSum result;
  for (size_t begin = 0; begin < n; begin += kBlock) result.sum += block_squares(in + begin, std::min(kBlock, n - begin));
  result.finite = std::isfinite(result.sum);
  return result;
}

}  // namespace deepspeed::kernels
