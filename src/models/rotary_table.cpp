#include "models/rotary_table.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <numbers>

namespace deepspeed::models {
namespace {

// Angle per position of each pair, fp32 [head_dim / 2].
at::Tensor frequencies(const ModelInfo::Rope& rope, int64_t head_dim) {
  const at::Tensor exponents = at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor plain = at::pow(rope.theta, exponents).reciprocal();
  if (rope.type == "linear") return plain / rope.factor;
  if (rope.type != "llama3") return plain;
  // Long wavelengths are stretched by `factor`, short ones stay, those between are blended.
  const auto original = static_cast<double>(rope.original_max_positions);
  const at::Tensor wavelength = (2 * std::numbers::pi) / plain;
  const at::Tensor blend = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor blended = (1 - blend) * plain / rope.factor + blend * plain;
  const at::Tensor stretched = at::where(wavelength > original / rope.low_freq_factor, plain / rope.factor, blended);
  return at::where(wavelength < original / rope.high_freq_factor, plain, stretched);
}

}  // namespace

std::pair<at::Tensor, at::Tensor> RotaryTable::get(int64_t begin, int64_t count, const at::TensorOptions& options) {
  const at::ScalarType dtype = at::typeMetaToScalarType(options.dtype());
  const bool fits = cos_.defined() && cos_.size(0) >= begin + count && cos_.scalar_type() == dtype && cos_.device() == options.device();
  if (!fits) {
    // Made once and used by later training passes, whatever mode this call runs in.
    const c10::InferenceMode no_inference(false);
    const at::NoGradGuard no_grad;
    const int64_t capacity = std::max<int64_t>(begin + count, cos_.defined() ? 2 * cos_.size(0) : 0);
    const at::Tensor angles = at::outer(at::arange(capacity, at::kFloat), frequencies(rope_, head_dim_));
    cos_ = angles.cos().to(options.device(), dtype);
    sin_ = angles.sin().to(options.device(), dtype);
  }
  return {cos_.narrow(0, begin, count), sin_.narrow(0, begin, count)};
}

}  // namespace deepspeed::models
