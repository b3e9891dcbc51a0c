// 16-bit floating point on plain integers: round to nearest even, NaN stays NaN. No hardware type is assumed, and nothing branches, so that loops over
// these functions vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace deepspeed::kernels {

inline float bf16_to_float(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded);
}

inline float fp16_to_float(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const uint32_t rest = value & 0x7FFFu;
  const uint32_t normal = (rest << 13) + (112u << 23);
  const uint32_t special = (rest << 13) | 0x7F800000u;
  // Below the normal range the value is mantissa * 2^-24, exact in float.
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f);
  const uint32_t finite = rest < 0x0400u ? subnormal : normal;
  return std::bit_cast<float>(sign | (rest >= 0x7C00u ? special : finite));
}

// Overflow becomes infinity.
inline uint16_t float_to_fp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t normal = (magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Adding 0.5 lets the adder round the value to a multiple of 2^-24, the subnormal spacing.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477FF000u ? 0x7C00u : result;
  result = magnitude > 0x7F800000u ? nan : result;
  return static_cast<uint16_t>(sign | result);
}

}  // namespace deepspeed::kernels
