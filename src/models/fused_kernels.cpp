#include "models/fused_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/simd.h"

// What DS_SIMD functions call must be inlined by force: an ordinary inline function, std::bit_cast too, stays a call in them.
#define DS_INLINE inline __attribute__((always_inline))

namespace deepspeed::models {
namespace {

constexpr size_t kLanes = 16;    // independent partial sums, so that a sum fills the widest registers
constexpr size_t kBlock = 1024;  // bf16 values widened at a time: stays in the first-level cache

DS_INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
DS_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// c ? a : b without a branch, as the vectoriser gives up on one.
DS_INLINE uint32_t select(bool c, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(c);
  return (a & mask) | (b & ~mask);
}

DS_INLINE float select(bool c, float a, float b) { return float_of(select(c, bits_of(a), bits_of(b))); }

// exp(x) for floats, relative error below 2e-7; 0 below -87, infinity above 88.7. Branch-free, so that loops over it vectorise.
// x = k ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor sum to degree 7; times 2^k by the exponent bits.
DS_INLINE float exp_float(float x) {
  const float clamped = select(x > 89.0f, 89.0f, select(x < -87.0f, -87.0f, x));
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float k = (clamped * 1.44269504f + kRound) - kRound;
  const float r = (clamped - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // In two halves: 2^128 is not a float although 2^128 * 0.5 * p may be one.
  const int32_t whole = static_cast<int32_t>(k);
  const int32_t first = whole >> 1;
  const float scale = float_of(static_cast<uint32_t>(first + 127) << 23) * float_of(static_cast<uint32_t>(whole - first + 127) << 23);
  return select(x < -87.0f, 0.0f, p * scale);
}

DS_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_float(-x)); }

// Nearest even; a NaN stays one.
DS_INLINE uint32_t rounded_bits(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  return select((bits & 0x7FFFFFFFu) > 0x7F800000u, 0x7FC00000u, rounded & 0xFFFF0000u);
}

DS_INLINE float round_to_bf16(float value) { return float_of(rounded_bits(value)); }

DS_SIMD void widen(float* out, const bf16_bits* in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = float_of(static_cast<uint32_t>(in[i]) << 16);
}

DS_SIMD void narrow(bf16_bits* out, const float* in, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<bf16_bits>(rounded_bits(in[i]) >> 16);
}

float total(const float* lanes) {
  float sum = 0;
  for (size_t l = 0; l < kLanes; ++l) sum += lanes[l];
  return sum;
}

DS_SIMD float sum_of_squares(const float* x, size_t n) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += x[i + l] * x[i + l];
  }
  for (size_t l = 0; i + l < n; ++l) lanes[l] += x[i + l] * x[i + l];
  return total(lanes);
}

DS_SIMD float sum_of_products(const float* a, const float* b, const float* c, size_t n) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l] * c[i + l];
  }
  for (size_t l = 0; i + l < n; ++l) lanes[l] += a[i + l] * b[i + l] * c[i + l];
  return total(lanes);
}

DS_SIMD void scale_by_weight(float* out, const float* x, const float* weight, size_t n, float reciprocal) {
  for (size_t i = 0; i < n; ++i) out[i] = weight[i] * (x[i] * reciprocal);
}

// The norm is rounded before the weight multiplies it.
DS_SIMD void scale_by_weight_rounding(float* out, const float* x, const float* weight, size_t n, float reciprocal) {
  for (size_t i = 0; i < n; ++i) out[i] = weight[i] * round_to_bf16(x[i] * reciprocal);
}

DS_SIMD void rms_norm_gradients(float* grad_x, float* grad_weight, const float* grad, const float* x, const float* weight, size_t n,
                                float reciprocal, float mean) {
  for (size_t i = 0; i < n; ++i) {
    const float normed = x[i] * reciprocal;
    grad_weight[i] += grad[i] * normed;
    grad_x[i] = reciprocal * (grad[i] * weight[i] - normed * mean);
  }
}

DS_SIMD void rotate_floats(float* out, const float* x, const float* cos, const float* sin, size_t half, float sign) {
  for (size_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], s = sign * sin[i];
    out[i] = a * cos[i] - b * s;
    out[i + half] = b * cos[i] + a * s;
  }
}

DS_SIMD void swiglu_floats(float* out, const float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

DS_SIMD void swiglu_rounding(float* out, const float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = round_to_bf16(gate[i] * sigmoid(gate[i])) * up[i];
}

DS_SIMD void swiglu_gradients(float* grad_gate, float* grad_up, const float* grad, const float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float s = sigmoid(gate[i]);
    grad_up[i] = grad[i] * gate[i] * s;
    grad_gate[i] = grad[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
  }
}

DS_SIMD float largest(const float* x, size_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] = select(x[i + l] > lanes[l], x[i + l], lanes[l]);
  }
  for (size_t l = 0; i + l < n; ++l) lanes[l] = select(x[i + l] > lanes[l], x[i + l], lanes[l]);
  return *std::max_element(lanes, lanes + kLanes);
}

DS_SIMD float sum_of_exponentials(const float* x, size_t n, float shift) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += exp_float(x[i + l] - shift);
  }
  for (size_t l = 0; i + l < n; ++l) lanes[l] += exp_float(x[i + l] - shift);
  return total(lanes);
}

DS_SIMD void softmax_floats(float* x, size_t n, float shift, float scale) {
  for (size_t i = 0; i < n; ++i) x[i] = scale * exp_float(x[i] - shift);
}

DS_SIMD float exponentials_and_sum(float* x, size_t n, float scale, float shift) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) {
      x[i + l] = exp_float(scale * x[i + l] - shift);
      lanes[l] += x[i + l];
    }
  }
  for (size_t l = 0; i + l < n; ++l) {
    x[i + l] = exp_float(scale * x[i + l] - shift);
    lanes[l] += x[i + l];
  }
  return total(lanes);
}

DS_SIMD void exponentials(float* x, size_t n, float scale, float shift) {
  for (size_t i = 0; i < n; ++i) x[i] = exp_float(scale * x[i] - shift);
}

DS_SIMD void score_gradients(float* grad, const float* p, size_t n, float mean, float scale) {
  for (size_t i = 0; i < n; ++i) grad[i] = scale * p[i] * (grad[i] - mean);
}

DS_SIMD float sum_of_pairs(const float* a, const float* b, size_t n) {
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  for (size_t l = 0; i + l < n; ++l) lanes[l] += a[i + l] * b[i + l];
  return total(lanes);
}

DS_SIMD void scale_floats(float* out, const float* x, float factor, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = factor * x[i];
}

DS_SIMD void raise_tops(float* __restrict top, const float* __restrict x, size_t rows, size_t columns) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) top[c] = select(x[r * columns + c] > top[c], x[r * columns + c], top[c]);
  }
}

DS_SIMD void exponentials_of_columns(float* __restrict x, float* __restrict sum, const float* __restrict top, size_t rows, size_t columns) {
  for (size_t r = 0; r < rows; ++r) {
    float* row = x + r * columns;
    for (size_t c = 0; c < columns; ++c) {
      row[c] = exp_float(row[c] - top[c]);
      sum[c] += row[c];
    }
  }
}

// Largest value and sum of exponentials relative to it, of all blocks so far.
struct LogSum {
  float top = -std::numeric_limits<float>::infinity();
  double sum = 0;

  void add(const float* x, size_t n) {
    const float next = std::max(top, largest(x, n));
    if (std::isinf(next) && next < 0) return;
    sum = sum * std::exp(static_cast<double>(top) - static_cast<double>(next)) + static_cast<double>(sum_of_exponentials(x, n, next));
    top = next;
  }
  float value() const { return static_cast<float>(static_cast<double>(top) + std::log(sum)); }
};

// Scratch rows for widened values, kept per thread.
float* scratch(size_t row, size_t n) {
  thread_local std::vector<float> rows[5];
  if (rows[row].size() < n) rows[row].resize(n);
  return rows[row].data();
}

const float* widened(size_t row, const bf16_bits* in, size_t n) {
  float* out = scratch(row, n);
  widen(out, in, n);
  return out;
}

}  // namespace

float rms_norm_row(float* out, const float* x, const float* weight, size_t n, float eps) {
  const float reciprocal = 1.0f / std::sqrt(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  scale_by_weight(out, x, weight, n, reciprocal);
  return reciprocal;
}

float rms_norm_row(bf16_bits* out, const bf16_bits* x, const bf16_bits* weight, size_t n, float eps) {
  const float* wide = widened(0, x, n);
  const float reciprocal = 1.0f / std::sqrt(sum_of_squares(wide, n) / static_cast<float>(n) + eps);
  float* result = scratch(2, n);
  scale_by_weight_rounding(result, wide, widened(1, weight, n), n, reciprocal);
  narrow(out, result, n);
  return reciprocal;
}

void rms_norm_backward_row(float* grad_x, float* grad_weight, const float* grad, const float* x, const float* weight, size_t n,
                           float reciprocal) {
  const float mean = sum_of_products(grad, weight, x, n) * reciprocal / static_cast<float>(n);
  rms_norm_gradients(grad_x, grad_weight, grad, x, weight, n, reciprocal, mean);
}

void rms_norm_backward_row(bf16_bits* grad_x, float* grad_weight, const bf16_bits* grad, const bf16_bits* x, const bf16_bits* weight,
                           size_t n, float reciprocal) {
  float* result = scratch(3, n);
  rms_norm_backward_row(result, grad_weight, widened(0, grad, n), widened(1, x, n), widened(2, weight, n), n, reciprocal);
  narrow(grad_x, result, n);
}

void rotate_row(float* out, const float* x, const float* cos, const float* sin, size_t half, float sign) {
  rotate_floats(out, x, cos, sin, half, sign);
}

void rotate_row(bf16_bits* out, const bf16_bits* x, const bf16_bits* cos, const bf16_bits* sin, size_t half, float sign) {
  float* result = scratch(3, 2 * half);
  rotate_floats(result, widened(0, x, 2 * half), widened(1, cos, half), widened(2, sin, half), half, sign);
  narrow(out, result, 2 * half);
}

void swiglu(float* out, const float* gate, const float* up, size_t n) { swiglu_floats(out, gate, up, n); }

void swiglu(bf16_bits* out, const bf16_bits* gate, const bf16_bits* up, size_t n) {
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    float* result = scratch(2, count);
    swiglu_rounding(result, widened(0, gate + i, count), widened(1, up + i, count), count);
    narrow(out + i, result, count);
  }
}

void swiglu_backward(float* grad_gate, float* grad_up, const float* grad, const float* gate, const float* up, size_t n) {
  swiglu_gradients(grad_gate, grad_up, grad, gate, up, n);
}

void swiglu_backward(bf16_bits* grad_gate, bf16_bits* grad_up, const bf16_bits* grad, const bf16_bits* gate, const bf16_bits* up,
                     size_t n) {
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    float* to_gate = scratch(3, count);
    float* to_up = scratch(4, count);
    swiglu_gradients(to_gate, to_up, widened(0, grad + i, count), widened(1, gate + i, count), widened(2, up + i, count), count);
    narrow(grad_gate + i, to_gate, count);
    narrow(grad_up + i, to_up, count);
  }
}

float log_sum_exp(const float* x, size_t n) {
  LogSum result;
  for (size_t i = 0; i < n; i += kBlock) result.add(x + i, std::min(kBlock, n - i));
  return result.value();
}

float log_sum_exp(const bf16_bits* x, size_t n) {
  LogSum result;
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    result.add(widened(0, x + i, count), count);
  }
  return result.value();
}

void scaled_softmax(float* x, size_t n, float shift, float scale) { softmax_floats(x, n, shift, scale); }

void scaled_softmax(bf16_bits* x, size_t n, float shift, float scale) {
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    float* wide = scratch(0, count);
    widen(wide, x + i, count);
    softmax_floats(wide, count, shift, scale);
    narrow(x + i, wide, count);
  }
}

void column_tops(float* top, const float* x, size_t rows, size_t columns) { raise_tops(top, x, rows, columns); }

void column_exponentials(float* x, float* sum, const float* top, size_t rows, size_t columns) {
  exponentials_of_columns(x, sum, top, rows, columns);
}

float softmax_numerators(float* x, size_t n, float scale, float* top) {
  *top = scale * largest(x, n);
  return exponentials_and_sum(x, n, scale, *top);
}

void softmax_with(float* x, size_t n, float scale, float shift) { exponentials(x, n, scale, shift); }

void softmax_gradient(float* grad, const float* p, size_t n, float mean, float scale) { score_gradients(grad, p, n, mean, scale); }

float dot(const float* a, const float* b, size_t n) { return sum_of_pairs(a, b, n); }

void multiply(float* out, const float* x, float factor, size_t n) { scale_floats(out, x, factor, n); }

void to_floats(float* out, const float* in, size_t n) { std::memcpy(out, in, n * sizeof(float)); }
void to_floats(float* out, const bf16_bits* in, size_t n) { widen(out, in, n); }
void from_floats(float* out, const float* in, size_t n) { std::memcpy(out, in, n * sizeof(float)); }
void from_floats(bf16_bits* out, const float* in, size_t n) { narrow(out, in, n); }

}  // namespace deepspeed::models
