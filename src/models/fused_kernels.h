// Single-pass CPU loops of the models' pointwise parts, on rows of fp32 or bf16. No torch.
//
// bf16 values are widened, computed in fp32 and rounded where the reference models round. Rows may overlap only where said.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deepspeed::models {

using bf16_bits = uint16_t;

// Root mean square norm of one row: out[i] = weight[i] * (x[i] / rms), rms = sqrt(mean(x^2) + eps); returns 1 / rms.
// Source: Zhang and Sennrich, "Root mean square layer normalization" (arXiv:1910.07467).
float rms_norm_row(float* out, const float* x, const float* weight, size_t n, float eps);
float rms_norm_row(bf16_bits* out, const bf16_bits* x, const bf16_bits* weight, size_t n, float eps);

// Its gradients: grad_x[i] is written, grad_weight[i] (fp32) is added to. `reciprocal` is what the forward returned.
void rms_norm_backward_row(float* grad_x, float* grad_weight, const float* grad, const float* x, const float* weight, size_t n,
                           float reciprocal);
void rms_norm_backward_row(bf16_bits* grad_x, float* grad_weight, const bf16_bits* grad, const bf16_bits* x, const bf16_bits* weight,
                           size_t n, float reciprocal);

// Rotates the pairs (x[i], x[i + half]) of one head by the angle whose cosine and sine are cos[i] and sign * sin[i].
// Source: Su et al., "RoFormer" (arXiv:2104.09864), with the two halves of a head as pairs.
void rotate_row(float* out, const float* x, const float* cos, const float* sin, size_t half, float sign);
void rotate_row(bf16_bits* out, const bf16_bits* x, const bf16_bits* cos, const bf16_bits* sin, size_t half, float sign);

// out[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)). Source: Shazeer, "GLU variants improve transformer" (arXiv:2002.05202).
void swiglu(float* out, const float* gate, const float* up, size_t n);
void swiglu(bf16_bits* out, const bf16_bits* gate, const bf16_bits* up, size_t n);
void swiglu_backward(float* grad_gate, float* grad_up, const float* grad, const float* gate, const float* up, size_t n);
void swiglu_backward(bf16_bits* grad_gate, bf16_bits* grad_up, const bf16_bits* grad, const bf16_bits* gate, const bf16_bits* up, size_t n);

// log(sum(exp(x[i]))) of one row, without overflow.
float log_sum_exp(const float* x, size_t n);
float log_sum_exp(const bf16_bits* x, size_t n);

// x[i] = scale * exp(x[i] - shift), in place.
void scaled_softmax(float* x, size_t n, float shift, float scale);
void scaled_softmax(bf16_bits* x, size_t n, float shift, float scale);

// Columns of x [rows, columns]: top[c] = max(top[c], x[r][c]); then x = exp(x - top), in place, with sum[c] += the results.
void column_tops(float* top, const float* x, size_t rows, size_t columns);
void column_exponentials(float* x, float* sum, const float* top, size_t rows, size_t columns);

// Attention, one row of scores: x[i] = exp(scale * x[i] - top), top = scale * max(x) (scale > 0). Returns the sum of the results.
float softmax_numerators(float* x, size_t n, float scale, float* top);
// x[i] = exp(scale * x[i] - shift).
void softmax_with(float* x, size_t n, float scale, float shift);
// Gradient of the scores from that of the probabilities: grad[i] = scale * p[i] * (grad[i] - mean), mean the sum of p * grad over the row.
void softmax_gradient(float* grad, const float* p, size_t n, float mean, float scale);
float dot(const float* a, const float* b, size_t n);
// out[i] = factor * x[i]; the ranges may be the same.
void multiply(float* out, const float* x, float factor, size_t n);

// Between the types of a tensor and fp32.
void to_floats(float* out, const float* in, size_t n);
void to_floats(float* out, const bf16_bits* in, size_t n);
void from_floats(float* out, const float* in, size_t n);
void from_floats(bf16_bits* out, const float* in, size_t n);

}  // namespace deepspeed::models
