#include "kernels/cast.h"

#include <cstring>

#include "base/check.h"
#include "kernels/half.h"
#include "kernels/simd.h"

namespace deepspeed::kernels {

size_t bytes_of(DataType type) { return type == DataType::kFloat32 ? 4 : 2; }

namespace {

DS_SIMD void to_bf16(uint16_t* __restrict out, const float* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = float_to_bf16(in[i]);
}

DS_SIMD void from_bf16(float* __restrict out, const uint16_t* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = bf16_to_float(in[i]);
}

DS_SIMD void to_fp16(uint16_t* __restrict out, const float* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = float_to_fp16(in[i]);
}

DS_SIMD void from_fp16(float* __restrict out, const uint16_t* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = fp16_to_float(in[i]);
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
      to_fp16(static_cast<uint16_t*>(out), in, n);
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
      from_fp16(out, static_cast<const uint16_t*>(in), n);
      return;
  }
  DS_CHECK(false, "data type ", static_cast<int>(from));
}

}  // namespace deepspeed::kernels
