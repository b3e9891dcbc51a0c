// What a model is, by its config.json. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deepspeed/error.h"

namespace deepspeed {

// What a config.json says, in one vocabulary for all model types.
struct ModelInfo {
  std::string type;  // "llama", "qwen2", "gpt2"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;           // heads of keys and values; divides heads
  int64_t head_dim = 0;           // elements
  int64_t intermediate_size = 0;  // of the feed-forward part
  int64_t max_positions = 0;      // longest sequence; a limit for gpt2, a hint for the others
  double norm_eps = 1e-5;
  std::string activation;  // "silu", "gelu", "gelu_new", "relu"
  bool tied = false;       // head and embedding are one tensor
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;  // probabilities, in training mode only
  double initializer_range = 0.02;                                            // standard deviation of a fresh model's weights

  bool scale_attention = true;            // gpt2: scores are divided by sqrt(head_dim)
  bool scale_attention_by_layer = false;  // gpt2: and by the layer's number, from 1

  struct Rope {  // llama, qwen2
    double theta = 10000.0;
    std::string type = "default";                          // "default", "linear", "llama3"
    double factor = 1.0;                                   // linear, llama3
    double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
    int64_t original_max_positions = 8192;                 // llama3
  } rope;

  std::vector<int64_t> eos_ids;  // tokens that end a text; empty: none known
  std::string config_json;       // the text it came from
};

// Reads the text of a config.json. Throws Error: kModelFormat for a missing or wrong key, kNotBuilt for a model type or setting that this
// version cannot compute, both naming the key.
ModelInfo parse_model_info(const std::string& config_json);

}  // namespace deepspeed
