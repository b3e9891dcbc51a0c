#include "models/layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include "base/check.h"
#include "models/attention.h"
#include "models/fused_ops.h"
#include "models/wide_linear.h"

namespace deepspeed::models {

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  weight = register_parameter("weight", at::empty({out, in}));
  if (with_bias) bias = register_parameter("bias", at::empty({out}));
}

at::Tensor Linear::forward(const at::Tensor& x) const { return linear(x, weight, bias); }

Conv1D::Conv1D(int64_t in, int64_t out) {
  weight = register_parameter("weight", at::empty({in, out}));
  bias = register_parameter("bias", at::empty({out}));
}

at::Tensor Conv1D::forward(const at::Tensor& x) const { return linear(x, weight.t(), bias); }

Embedding::Embedding(int64_t entries, int64_t width) { weight = register_parameter("weight", at::empty({entries, width})); }

at::Tensor Embedding::forward(const at::Tensor& ids) const { return at::embedding(weight, ids); }

RmsNorm::RmsNorm(int64_t width, double eps) : eps_(eps) { weight = register_parameter("weight", at::empty({width})); }

at::Tensor RmsNorm::forward(const at::Tensor& x) const { return rms_norm(x, weight, eps_); }

LayerNorm::LayerNorm(int64_t width, double eps) : eps_(eps) {
  weight = register_parameter("weight", at::empty({width}));
  bias = register_parameter("bias", at::empty({width}));
}

at::Tensor LayerNorm::forward(const at::Tensor& x) const { return at::layer_norm(x, {weight.size(0)}, weight, bias, eps_); }

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  if (name == "silu") return at::silu(x);
  if (name == "gelu") return at::gelu(x);
  if (name == "gelu_new") return at::gelu(x, "tanh");
  DS_CHECK(name == "relu", "activation ", name);
  return at::relu(x);
}

at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v, const AttentionOptions& options, KeyValueCache* cache, size_t layer) {
  const int64_t batch = q.size(0), seq = q.size(1);
  bool causal = true;
  if (cache != nullptr) {
    causal = cache->length == 0;
    DS_CHECK(causal || seq == 1, "got ", seq, " tokens after ", cache->length);
    DS_CHECK(cache->length + seq <= cache->capacity, cache->length, " + ", seq, " > ", cache->capacity);
    KeyValueCache::Layer& kept = cache->layers[layer];
    if (!kept.keys.defined()) {
      kept.keys = at::empty({batch, cache->capacity, k.size(2), k.size(3)}, k.options());
      kept.values = at::empty_like(kept.keys);
    }
    kept.keys.narrow(1, cache->length, seq).copy_(k);
    kept.values.narrow(1, cache->length, seq).copy_(v);
    k = kept.keys.narrow(1, 0, cache->length + seq);
    v = kept.values.narrow(1, 0, cache->length + seq);
  }
  const bool one_type = k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type();
  if (causal && options.dropout == 0.0 && one_type && causal_attention_pays(q)) {
    return causal_attention(q, k, v, options.scale).view({batch, seq, q.size(2) * q.size(3)});
  }
  const bool grouped = k.size(2) != q.size(2);
  const at::Tensor out = at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, options.dropout,
                                                          causal, options.scale, grouped);
  return out.transpose(1, 2).reshape({batch, seq, q.size(2) * q.size(3)});
}

}  // namespace deepspeed::models
