// GPT-2.
//
//   x = dropout(wte(ids) + wpe(positions))
//   for each layer: x += dropout(c_proj(attend(split(c_attn(ln_1(x))))))
//                   x += dropout(c_proj(gelu(c_fc(ln_2(x)))))
//   head(ln_f(x))
#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>

#include <cmath>

#include "base/text.h"
#include "models/builders.h"
#include "models/layers.h"

namespace deepspeed::models {
namespace {

using at::Tensor;

Tensor drop(const Tensor& x, double probability, bool training) {
  return training && probability > 0 ? at::dropout(x, probability, true) : x;
}

class Gpt2Attention : public torch::nn::Module {
 public:
  Gpt2Attention(const ModelInfo& info, int64_t layer)
      : heads_(info.heads), dim_(info.head_dim), attention_dropout_(info.attention_dropout), residual_dropout_(info.residual_dropout) {
    if (info.scale_attention) scale_ /= std::sqrt(static_cast<double>(dim_));
    if (info.scale_attention_by_layer) scale_ /= static_cast<double>(layer + 1);
    c_attn_ = register_module("c_attn", std::make_shared<Conv1D>(info.hidden_size, 3 * info.hidden_size));
    c_proj_ = register_module("c_proj", std::make_shared<Conv1D>(info.hidden_size, info.hidden_size));
  }

  Tensor forward(const Tensor& x, KeyValueCache* cache, size_t layer) const {
    const int64_t batch = x.size(0), seq = x.size(1);
    const std::vector<Tensor> parts = c_attn_->forward(x).view({batch, seq, 3, heads_, dim_}).unbind(2);
    const AttentionOptions options = {.scale = scale_, .dropout = is_training() ? attention_dropout_ : 0.0};
    return drop(c_proj_->forward(attend(parts[0], parts[1], parts[2], options, cache, layer)), residual_dropout_, is_training());
  }

 private:
  int64_t heads_, dim_;
  double attention_dropout_, residual_dropout_;
  double scale_ = 1.0;
  std::shared_ptr<Conv1D> c_attn_, c_proj_;
};

class Gpt2Mlp : public torch::nn::Module {
 public:
  explicit Gpt2Mlp(const ModelInfo& info) : activation_(info.activation), dropout_(info.residual_dropout) {
    c_fc_ = register_module("c_fc", std::make_shared<Conv1D>(info.hidden_size, info.intermediate_size));
    c_proj_ = register_module("c_proj", std::make_shared<Conv1D>(info.intermediate_size, info.hidden_size));
  }

  Tensor forward(const Tensor& x) const {
    return drop(c_proj_->forward(activate(activation_, c_fc_->forward(x))), dropout_, is_training());
  }

 private:
  std::string activation_;
  double dropout_;
  std::shared_ptr<Conv1D> c_fc_, c_proj_;
};

class Gpt2Layer : public torch::nn::Module {
 public:
  Gpt2Layer(const ModelInfo& info, int64_t layer) {
    ln_1_ = register_module("ln_1", std::make_shared<LayerNorm>(info.hidden_size, info.norm_eps));
    attention_ = register_module("attn", std::make_shared<Gpt2Attention>(info, layer));
    ln_2_ = register_module("ln_2", std::make_shared<LayerNorm>(info.hidden_size, info.norm_eps));
    mlp_ = register_module("mlp", std::make_shared<Gpt2Mlp>(info));
  }

  Tensor forward(const Tensor& x, KeyValueCache* cache, size_t layer) const {
    const Tensor attended = x + attention_->forward(ln_1_->forward(x), cache, layer);
    return attended + mlp_->forward(ln_2_->forward(attended));
  }

 private:
  std::shared_ptr<LayerNorm> ln_1_, ln_2_;
  std::shared_ptr<Gpt2Attention> attention_;
  std::shared_ptr<Gpt2Mlp> mlp_;
};

class Gpt2Model : public torch::nn::Module {
 public:
  explicit Gpt2Model(const ModelInfo& info) : dropout_(info.embedding_dropout) {
    wte_ = register_module("wte", std::make_shared<Embedding>(info.vocab_size, info.hidden_size));
    wpe_ = register_module("wpe", std::make_shared<Embedding>(info.max_positions, info.hidden_size));
    const auto list = register_module("h", std::make_shared<torch::nn::Module>());
    for (int64_t i = 0; i < info.layers; ++i) {
      layers_.push_back(list->register_module(std::to_string(i), std::make_shared<Gpt2Layer>(info, i)));
    }
    ln_f_ = register_module("ln_f", std::make_shared<LayerNorm>(info.hidden_size, info.norm_eps));
  }

  Tensor forward(const Tensor& ids, KeyValueCache* cache) const {
    const int64_t begin = cache != nullptr ? cache->length : 0, positions = wpe_->weight.size(0);
    if (begin + ids.size(1) > positions) {
      throw Error(ErrorCode::kUsage, "models", base::str("length of a text: got ", begin + ids.size(1), " tokens, allowed ", positions));
    }
    Tensor x = drop(wte_->forward(ids) + wpe_->weight.narrow(0, begin, ids.size(1)), dropout_, is_training());
    for (size_t i = 0; i < layers_.size(); ++i) x = layers_[i]->forward(x, cache, i);
    return ln_f_->forward(x);
  }

  const Tensor& embedding() const { return wte_->weight; }

 private:
  double dropout_;
  std::shared_ptr<Embedding> wte_, wpe_;
  std::vector<std::shared_ptr<Gpt2Layer>> layers_;
  std::shared_ptr<LayerNorm> ln_f_;
};

class Gpt2ForCausalLM : public CausalLM {
 public:
  explicit Gpt2ForCausalLM(ModelInfo given) : CausalLM(std::move(given)) {
    transformer_ = register_module("transformer", std::make_shared<Gpt2Model>(info()));
    if (!info().tied) lm_head_ = register_module("lm_head", std::make_shared<Linear>(info().hidden_size, info().vocab_size, false));
  }

 protected:
  Tensor hidden_states(const Tensor& ids, KeyValueCache* cache) override { return transformer_->forward(ids, cache); }
  const Tensor& head_weight() const override { return lm_head_ ? lm_head_->weight : transformer_->embedding(); }

 private:
  std::shared_ptr<Gpt2Model> transformer_;
  std::shared_ptr<Linear> lm_head_;  // empty: tied
};

}  // namespace

std::shared_ptr<CausalLM> build_gpt2(ModelInfo info) { return std::make_shared<Gpt2ForCausalLM>(std::move(info)); }

}  // namespace deepspeed::models
