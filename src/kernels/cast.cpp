#include "kernels/cast.h"

#include <cstring>

#include "base/check.h"
#include "kernels/half.h"
#include "kernels/simd.h"

namespace deepspeed::kernels {

float fp16_to_float(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  uint32_t exponent = (value >> 10) & 0x1Fu;
  uint32_t mantissa = value & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    // Subnormal: mantissa * 2^-24 is exact in float.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 lets the adder round the value to a multiple of 2^-24, the subnormal spacing.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

size_t bytes_of(DataType type) { return type == DataType::kFloat32 ? 4 : 2; }

namespace {

DS_SIMD void to_bf16(uint16_t* __restrict out, const float* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = float_to_bf16(in[i]);
}

DS_SIMD void from_bf16(float* __restrict out, const uint16_t* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = bf16_to_float(in[i]);
}

}  // namespace

void cast_from_float(void* out, DataType to, const float* in, size_t n) {
  switch (to) {
    case DataType::kFloat32:
      if (n > 0 && out != in) std::memcpy(out, in, n * sizeof(float));
      return;
    case DataType::kBFloat16:
      to_bf16(static_cast<uint16_t*>(out), in, n);
      return;
    case DataType::kFloat16:
      for (size_t i = 0; i < n; ++i) static_cast<uint16_t*>(out)[i] = float_to_fp16(in[i]);
      return;
  }
  DS_CHECK(false, "data type ", static_cast<int>(to));
}

void cast_to_float(float* out, const void* in, DataType from, size_t n) {
  switch (from) {
    case DataType::kFloat32:
      if (n > 0 && out != in) std::memcpy(out, in, n * sizeof(float));
      return;
    case DataType::kBFloat16:
      from_bf16(out, static_cast<const uint16_t*>(in), n);
      return;
    case DataType::kFloat16:
      for (size_t i = 0; i < n; ++i) out[i] = fp16_to_float(static_cast<const uint16_t*>(in)[i]);
      return;
  }
  DS_CHECK(false, "data type ", static_cast<int>(from));
}

}  // namespace deepspeed::kernels
