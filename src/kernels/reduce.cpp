#include "kernels/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

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

// Returns the sum of squares; `bad` counts elements whose exponent is all ones.
DS_SIMD double block_squares(const float* __restrict in, size_t n, uint32_t* bad) {
  std::array<double, 16> lanes{};
  uint32_t count = 0;
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (size_t k = 0; k < 16; ++k) {
      const float value = in[i + k];
      lanes[k] += static_cast<double>(value) * static_cast<double>(value);
      uint32_t bits;
      std::memcpy(&bits, in + i + k, sizeof bits);
      count += (bits & 0x7F800000u) == 0x7F800000u;
    }
  }
  for (; i < n; ++i) {
    lanes[0] += static_cast<double>(in[i]) * static_cast<double>(in[i]);
    count += (std::bit_cast<uint32_t>(in[i]) & 0x7F800000u) == 0x7F800000u;
  }
  *bad += count;
  double sum = 0;
  for (double lane : lanes) sum += lane;
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
  uint32_t bad = 0;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    result.sum += block_squares(in + begin, std::min(kBlock, n - begin), &bad);
    if (bad != 0) break;
  }
  result.finite = bad == 0;
  return result;
}

}  // namespace deepspeed::kernels
