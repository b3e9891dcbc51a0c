// 16-bit floating point on plain integers. bfloat16: round to nearest even, NaN stays NaN. No hardware type is assumed.
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

float fp16_to_float(uint16_t value);
uint16_t float_to_fp16(float value);  // round to nearest even; overflow becomes infinity

}  // namespace deepspeed::kernels
