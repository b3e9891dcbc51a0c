// The layers models are made of, as plain modules with Hugging Face's parameter names.
//
// Parameters are read through the registered tensors at every call and never kept: an engine may change their storage between calls.
// Parameters start uninitialised: init_weights() or a weights file fills them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace deepspeed {

// Keys and values of the text so far. One per generated text.
struct KeyValueCache {
  struct Layer {
    at::Tensor keys, values;  // [batch, capacity, kv_heads, head_dim]; undefined until first used
  };
  std::vector<Layer> layers;
  int64_t capacity = 0;  // positions
  int64_t length = 0;    // positions filled
};

namespace models {

// weight [out, in], bias [out]
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in, int64_t out, bool with_bias);
  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor weight, bias;
};

// GPT-2's linear layer: weight [in, out], bias [out]
class Conv1D : public torch::nn::Module {
 public:
  Conv1D(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor weight, bias;
};

// weight [entries, width]
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t entries, int64_t width);
  at::Tensor forward(const at::Tensor& ids) const;
  at::Tensor weight;
};

// weight [width]
class RmsNorm : public torch::nn::Module {
 public:
  RmsNorm(int64_t width, double eps);
  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor weight;

 private:
  double eps_;
};

// weight, bias [width]
class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t width, double eps);
  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor weight, bias;

 private:
  double eps_;
};

// `name` as in ModelInfo::activation.
at::Tensor activate(const std::string& name, const at::Tensor& x);

struct AttentionOptions {
  double scale = 1.0;
  double dropout = 0.0;  // probability, already 0 outside training
};

// Causal attention. q [batch, seq, heads, dim], k and v [batch, seq, kv_heads, dim] -> [batch, seq, heads * dim]. With a cache, k and v are added to
// `layer` and the text before them is attended to as well; then seq is 1 unless the cache was empty.
at::Tensor attend(const at::Tensor& q, at::Tensor k, at::Tensor v, const AttentionOptions& options, KeyValueCache* cache, size_t layer);

}  // namespace models
}  // namespace deepspeed
