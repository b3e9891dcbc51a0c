// LLaMA and Qwen2, which differ only in where biases are.
//
//   x = embed(ids)
//   for each layer: x += o(attend(rotate(q(n)), rotate(k(n)), v(n))), n = norm(x)
//                   x += down(silu(gate(m)) * up(m)),                 m = norm(x)
//   head(norm(x))
#include <ATen/TensorOperators.h>

#include <cmath>

#include "models/builders.h"
#include "models/fused_ops.h"
#include "models/layers.h"
#include "models/rotary_table.h"

namespace deepspeed::models {
namespace {

using at::Tensor;

class LlamaAttention : public torch::nn::Module {
 public:
  explicit LlamaAttention(const ModelInfo& info)
      : heads_(info.heads), kv_heads_(info.kv_heads), dim_(info.head_dim), dropout_(info.attention_dropout) {
    q_proj_ = register_module("q_proj", std::make_shared<Linear>(info.hidden_size, heads_ * dim_, info.qkv_bias));
    k_proj_ = register_module("k_proj", std::make_shared<Linear>(info.hidden_size, kv_heads_ * dim_, info.qkv_bias));
    v_proj_ = register_module("v_proj", std::make_shared<Linear>(info.hidden_size, kv_heads_ * dim_, info.qkv_bias));
    o_proj_ = register_module("o_proj", std::make_shared<Linear>(heads_ * dim_, info.hidden_size, info.output_bias));
  }

  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin, KeyValueCache* cache, size_t layer) const {
    const int64_t batch = x.size(0), seq = x.size(1);
    const Tensor q = rotate(q_proj_->forward(x).view({batch, seq, heads_, dim_}), cos, sin);
    const Tensor k = rotate(k_proj_->forward(x).view({batch, seq, kv_heads_, dim_}), cos, sin);
    const Tensor v = v_proj_->forward(x).view({batch, seq, kv_heads_, dim_});
    const AttentionOptions options = {.scale = 1.0 / std::sqrt(static_cast<double>(dim_)), .dropout = is_training() ? dropout_ : 0.0};
    return o_proj_->forward(attend(q, k, v, options, cache, layer));
  }

 private:
  int64_t heads_, kv_heads_, dim_;
  double dropout_;
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
};

class LlamaMlp : public torch::nn::Module {
 public:
  explicit LlamaMlp(const ModelInfo& info) : activation_(info.activation) {
    gate_proj_ = register_module("gate_proj", std::make_shared<Linear>(info.hidden_size, info.intermediate_size, info.mlp_bias));
    up_proj_ = register_module("up_proj", std::make_shared<Linear>(info.hidden_size, info.intermediate_size, info.mlp_bias));
    down_proj_ = register_module("down_proj", std::make_shared<Linear>(info.intermediate_size, info.hidden_size, info.mlp_bias));
  }

  Tensor forward(const Tensor& x) const {
    const Tensor gate = gate_proj_->forward(x), up = up_proj_->forward(x);
    return down_proj_->forward(activation_ == "silu" ? swiglu(gate, up) : activate(activation_, gate) * up);
  }

 private:
  std::string activation_;
  std::shared_ptr<Linear> gate_proj_, up_proj_, down_proj_;
};

class LlamaLayer : public torch::nn::Module {
 public:
  explicit LlamaLayer(const ModelInfo& info) {
    attention_ = register_module("self_attn", std::make_shared<LlamaAttention>(info));
    mlp_ = register_module("mlp", std::make_shared<LlamaMlp>(info));
    input_norm_ = register_module("input_layernorm", std::make_shared<RmsNorm>(info.hidden_size, info.norm_eps));
    mlp_norm_ = register_module("post_attention_layernorm", std::make_shared<RmsNorm>(info.hidden_size, info.norm_eps));
  }

  Tensor forward(const Tensor& x, const Tensor& cos, const Tensor& sin, KeyValueCache* cache, size_t layer) const {
    const Tensor attended = x + attention_->forward(input_norm_->forward(x), cos, sin, cache, layer);
    return attended + mlp_->forward(mlp_norm_->forward(attended));
  }

 private:
  std::shared_ptr<LlamaAttention> attention_;
  std::shared_ptr<LlamaMlp> mlp_;
  std::shared_ptr<RmsNorm> input_norm_, mlp_norm_;
};

class LlamaModel : public torch::nn::Module {
 public:
  explicit LlamaModel(const ModelInfo& info) : table_(info.rope, info.head_dim) {
    embed_tokens_ = register_module("embed_tokens", std::make_shared<Embedding>(info.vocab_size, info.hidden_size));
    const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
    for (int64_t i = 0; i < info.layers; ++i) {
      layers_.push_back(list->register_module(std::to_string(i), std::make_shared<LlamaLayer>(info)));
    }
    norm_ = register_module("norm", std::make_shared<RmsNorm>(info.hidden_size, info.norm_eps));
  }

  Tensor forward(const Tensor& ids, KeyValueCache* cache) {
    Tensor x = embed_tokens_->forward(ids);
    const auto [cos, sin] = table_.get(cache != nullptr ? cache->length : 0, ids.size(1), x.options());
    for (size_t i = 0; i < layers_.size(); ++i) x = layers_[i]->forward(x, cos, sin, cache, i);
    return norm_->forward(x);
  }

  const Tensor& embedding() const { return embed_tokens_->weight; }

 private:
  RotaryTable table_;
  std::shared_ptr<Embedding> embed_tokens_;
  std::vector<std::shared_ptr<LlamaLayer>> layers_;
  std::shared_ptr<RmsNorm> norm_;
};

class LlamaForCausalLM : public CausalLM {
 public:
  explicit LlamaForCausalLM(ModelInfo given) : CausalLM(std::move(given)) {
    model_ = register_module("model", std::make_shared<LlamaModel>(info()));
    if (!info().tied) lm_head_ = register_module("lm_head", std::make_shared<Linear>(info().hidden_size, info().vocab_size, false));
  }

 protected:
  Tensor hidden_states(const Tensor& ids, KeyValueCache* cache) override { return model_->forward(ids, cache); }
  const Tensor& head_weight() const override { return lm_head_ ? lm_head_->weight : model_->embedding(); }

 private:
  std::shared_ptr<LlamaModel> model_;
  std::shared_ptr<Linear> lm_head_;  // empty: tied
};

}  // namespace

std::shared_ptr<CausalLM> build_llama(ModelInfo info) { return std::make_shared<LlamaForCausalLM>(std::move(info)); }

}  // namespace deepspeed::models
