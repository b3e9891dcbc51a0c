// Language models on plain modules: LLaMA, Qwen2 and GPT-2, read from and written to Hugging Face directories.
//
// Parameters carry their Hugging Face names, in the order of the Hugging Face module tree. A tied head is the embedding itself and appears once.
// Weights may be fp32 or bf16 (model->to(at::kBFloat16)); norms compute in fp32 inside, the loss is fp32.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deepspeed/error.h"
#include "deepspeed/model_info.h"

namespace deepspeed {

class Communicator;
struct KeyValueCache;  // of generate()

// A decoder with a language-modelling head. Not thread safe; each rank has its own.
class CausalLM : public torch::nn::Module {
 public:
  ~CausalLM() override;

  const ModelInfo& info() const { return info_; }

  // ids [batch, seq] int64 -> [batch, seq, vocab] in the weights' dtype.
  at::Tensor logits(const at::Tensor& ids);
  at::Tensor forward(const at::Tensor& ids) { return logits(ids); }

  // Mean cross entropy, fp32, of predicting each token from those before it: position t is scored against token t+1, the last one not at all.
  // ids [batch, seq >= 2] int64. The result supports one backward: the logits' memory becomes their gradient's.
  at::Tensor loss(const at::Tensor& ids);

  // Logits [batch, vocab] of the token that follows `ids`. With a cache, `ids` are only those that are not in it yet; they are added.
  at::Tensor next_logits(const at::Tensor& ids, KeyValueCache* cache = nullptr);

 protected:
  explicit CausalLM(ModelInfo info);

  // ids [batch, seq] -> states after the last norm, [batch, seq, hidden].
  virtual at::Tensor hidden_states(const at::Tensor& ids, KeyValueCache* cache) = 0;
  // [out, in] = [vocab, hidden]
  virtual const at::Tensor& head_weight() const = 0;

 private:
  ModelInfo info_;
};

// Mean cross entropy, fp32, of the logits hidden x weight^T against the labels, over the labels that are not `ignore_index` (NaN when none is left,
// as in torch). hidden [..., n] and weight [vocabulary, n] of one dtype, labels [...] int64. On the CPU, for fp32 and bf16, logits exist for a few
// tokens at a time (32 MB, or 32 tokens of a huge vocabulary), the gradients of hidden and weight are computed along with the loss, in fp32, and
// backward only hands them over: it may run once. Throws Error(kUsage) for shapes, Error(kDataFormat) for labels outside the vocabulary.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels, int64_t ignore_index = -100);

// How this process multiplies bf16 weights on the CPU: with the processor's own bf16 instructions or in fp32, whichever is faster when measured once
// (fp32 where the processor has none; DS_BF16_PRODUCTS=native or fp32 decides instead). The two round differently, so the ranks of a job take rank
// 0's choice. Collective. Without this call each process chooses when it first multiplies.
void choose_bf16_products(Communicator& communicator);

// Builds a model from the text of a config.json with fresh weights, the same for the same seed: matrices normal with
// initializer_range, norms 1, biases 0. fp32, on the CPU.
std::shared_ptr<CausalLM> make_model(const std::string& config_json, uint64_t seed = 0);

// Reads DIR/config.json and DIR/model.safetensors (or the shards of DIR/model.safetensors.index.json). Weights stored as fp32, bf16 or fp16
// become fp32. Throws Error(kModelFormat) with every missing, unknown and misshapen tensor in one message, Error(kFile) without files.
std::shared_ptr<CausalLM> load_model(const std::string& directory);

struct ExportOptions {
  std::string source_directory = {};        // tokenizer and generation files are copied from here; empty: none
  int64_t max_shard_bytes = 5'000'000'000;  // a model above this is cut into shards with an index
};

// Writes a directory that Hugging Face's from_pretrained() loads: model.safetensors (fp32), config.json and the files of options. `weights`
// are those of the model, by name; names that a tied model does not store are refused. Older weights files in the directory are removed.
void export_model(const std::string& directory, const std::map<std::string, at::Tensor>& weights, const ModelInfo& info,
                  const ExportOptions& options = {});

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  double temperature = 0.0;           // 0: the likeliest token each time
  int64_t top_k = 0;                  // only the k likeliest; 0: all
  double top_p = 1.0;                 // only the likeliest that together reach this probability
  uint64_t seed = 0;                  // same seed, same text, on all ranks
  std::vector<int64_t> eos_ids = {};  // stop after one of these; empty: those of the model's config
  bool use_cache = true;              // keep keys and values; false: recompute the whole text for each token
};

// Continues `prompt` and returns the new tokens, an end token included. Runs without gradients and in evaluation mode, and restores the mode.
// Throws Error(kUsage) for an empty prompt, token ids outside the vocabulary or options out of range. With stage 3 every rank must call it.
std::vector<int64_t> generate(CausalLM& model, const std::vector<int64_t>& prompt, const GenerateOptions& options = {});

// Text of token ids, by the tokenizer.json of a model directory. Thread safe.
class TextDecoder {
 public:
  explicit TextDecoder(const std::string& model_directory);
  std::string decode(std::span<const int64_t> ids, bool skip_special = true) const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace deepspeed
