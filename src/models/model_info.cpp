// config.json -> ModelInfo.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "models/model_info.h"

namespace deepspeed::models {
namespace {

using nlohmann::json;

[[noreturn]] void bad(const std::string& key, const std::string& got, const std::string& allowed) {
  throw Error(ErrorCode::kModelFormat, "models", base::str("config.json: ", key, ": got ", got, ", allowed ", allowed));
}

[[noreturn]] void not_built(const std::string& key, const std::string& got, const std::string& allowed) {
  throw Error(ErrorCode::kNotBuilt, "models", base::str("config.json: ", key, ": got ", got, ", allowed ", allowed));
}

// Reads keys of one object, with types checked and null meaning absent.
class Keys {
 public:
  Keys(const json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {}

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t count(const char* key, int64_t fallback = 0) const {
    const json* value = find(key);
    if (value == nullptr && fallback > 0) return fallback;
    if (value == nullptr) bad(prefix_ + key, "nothing", "a whole number above 0");
    if (!value->is_number_integer() || value->get<int64_t>() <= 0 || value->get<int64_t>() > INT32_MAX) {
      bad(prefix_ + key, value->dump(), "a whole number above 0");
    }
    return value->get<int64_t>();
  }
  double number(const char* key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || value->get<double>() < 0) bad(prefix_ + key, value->dump(), "a number of 0 or more");
    return value->get<double>();
  }
  double probability(const char* key) const {
    const double value = number(key, 0.0);
    if (value >= 1.0) bad(prefix_ + key, base::str(value), "0 or more and below 1");
    return value;
  }
  bool flag(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) bad(prefix_ + key, value->dump(), "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) bad(prefix_ + key, value->dump(), "text");
    return value->get<std::string>();
  }

 private:
  const json& object_;
  std::string prefix_;
};

std::string read_activation(const Keys& keys, const char* key, const std::string& fallback) {
  std::string name = keys.text(key, fallback);
  if (name == "swish") name = "silu";
  if (name == "gelu_pytorch_tanh" || name == "gelu_fast") name = "gelu_new";  // one formula
  static const std::vector<std::string> known = {"silu", "gelu", "gelu_new", "relu"};
  if (std::find(known.begin(), known.end(), name) == known.end()) not_built(key, name, base::join(known, ", "));
  return name;
}

// Newer files have "rope_parameters", older ones "rope_theta" and, when frequencies are scaled, "rope_scaling".
ModelInfo::Rope read_rope(const Keys& keys, int64_t max_positions) {
  ModelInfo::Rope rope;
  rope.theta = keys.number("rope_theta", rope.theta);
  const json* object = keys.find("rope_parameters");
  const char* name = object != nullptr ? "rope_parameters." : "rope_scaling.";
  if (object == nullptr) object = keys.find("rope_scaling");
  if (object != nullptr) {
    if (!object->is_object()) bad(name, object->dump(), "an object");
    const Keys inner(*object, name);
    rope.theta = inner.number("rope_theta", rope.theta);
    rope.type = inner.text("rope_type", inner.text("type", "default"));
    rope.factor = inner.number("factor", 1.0);
    rope.low_freq_factor = inner.number("low_freq_factor", rope.low_freq_factor);
    rope.high_freq_factor = inner.number("high_freq_factor", rope.high_freq_factor);
    rope.original_max_positions = inner.count("original_max_position_embeddings", max_positions);
    if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3") {
      not_built(base::str(name, "rope_type"), rope.type, "default, linear, llama3");
    }
    if (rope.factor <= 0) bad(base::str(name, "factor"), base::str(rope.factor), "above 0");
    if (inner.number("partial_rotary_factor", 1.0) != 1.0) not_built(base::str(name, "partial_rotary_factor"), "another", "1");
  }
  if (keys.number("partial_rotary_factor", 1.0) != 1.0) not_built("partial_rotary_factor", "another", "1");
  if (rope.theta <= 0) bad("rope_theta", base::str(rope.theta), "above 0");
  return rope;
}

void read_llama(const Keys& keys, ModelInfo& info) {
  const bool qwen = info.type == "qwen2";
  info.hidden_size = keys.count("hidden_size");
  info.layers = keys.count("num_hidden_layers");
  info.heads = keys.count("num_attention_heads");
  info.kv_heads = keys.count("num_key_value_heads", info.heads);
  info.intermediate_size = keys.count("intermediate_size");
  info.max_positions = keys.count("max_position_embeddings", 2048);
  info.head_dim = keys.count("head_dim", std::max<int64_t>(1, info.hidden_size / info.heads));
  if (keys.find("head_dim") == nullptr && info.hidden_size % info.heads != 0) {
    bad("hidden_size", base::str(info.hidden_size), base::str("a multiple of num_attention_heads, ", info.heads));
  }
  info.norm_eps = keys.number("rms_norm_eps", 1e-6);
  info.activation = read_activation(keys, "hidden_act", "silu");
  info.tied = keys.flag("tie_word_embeddings", false);
  info.qkv_bias = qwen || keys.flag("attention_bias", false);
  info.output_bias = !qwen && keys.flag("attention_bias", false);
  info.mlp_bias = !qwen && keys.flag("mlp_bias", false);
  info.attention_dropout = keys.probability("attention_dropout");
  info.rope = read_rope(keys, info.max_positions);
  if (info.head_dim % 2 != 0) bad("head_dim", base::str(info.head_dim), "an even number");
  if (keys.flag("use_sliding_window", false)) not_built("use_sliding_window", "true", "false");
  if (const json* types = keys.find("layer_types")) {
    for (const json& type : *types) {
      if (type != "full_attention") not_built("layer_types", type.dump(), "full_attention");
    }
  }
}

void read_gpt2(const Keys& keys, ModelInfo& info) {
  info.hidden_size = keys.count("n_embd", 768);
  info.layers = keys.count("n_layer", 12);
  info.heads = info.kv_heads = keys.count("n_head", 12);
  info.max_positions = keys.count("n_positions", 1024);
  if (info.hidden_size % info.heads != 0) bad("n_embd", base::str(info.hidden_size), base::str("a multiple of n_head, ", info.heads));
  info.head_dim = info.hidden_size / info.heads;
  info.intermediate_size = keys.count("n_inner", 4 * info.hidden_size);
  info.norm_eps = keys.number("layer_norm_epsilon", 1e-5);
  info.activation = read_activation(keys, "activation_function", "gelu_new");
  info.tied = keys.flag("tie_word_embeddings", true);
  info.qkv_bias = info.output_bias = info.mlp_bias = true;
  info.embedding_dropout = keys.probability("embd_pdrop");
  info.attention_dropout = keys.probability("attn_pdrop");
  info.residual_dropout = keys.probability("resid_pdrop");
  info.scale_attention = keys.flag("scale_attn_weights", true);
  info.scale_attention_by_layer = keys.flag("scale_attn_by_inverse_layer_idx", false);
  if (keys.flag("add_cross_attention", false)) not_built("add_cross_attention", "true", "false");
}

}  // namespace

std::vector<int64_t> read_eos_ids(const json& object) {
  std::vector<int64_t> ids;
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return ids;
  for (const json& id : found->is_array() ? *found : json::array({*found})) {
    if (!id.is_number_integer()) bad("eos_token_id", found->dump(), "a whole number or a list of them");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace deepspeed::models

namespace deepspeed {

ModelInfo parse_model_info(const std::string& config_json) {
  using namespace models;
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(config_json);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kModelFormat, "models", base::str("config.json is not JSON: ", error.what()));
  }
  if (!object.is_object()) bad("the whole", "no object", "an object");
  const Keys keys(object);
  ModelInfo info;
  info.config_json = config_json;
  info.type = keys.text("model_type", "");
  info.vocab_size = keys.count("vocab_size", info.type == "gpt2" ? 50257 : 0);
  info.initializer_range = keys.number("initializer_range", 0.02);
  if (keys.find("quantization_config") != nullptr) not_built("quantization_config", "quantised weights", "none");
  if (info.type == "llama" || info.type == "qwen2") {
    read_llama(keys, info);
  } else if (info.type == "gpt2") {
    read_gpt2(keys, info);
  } else {
    not_built("model_type", info.type.empty() ? "nothing" : info.type, "llama, qwen2, gpt2");
  }
  if (info.heads % info.kv_heads != 0) {
    bad("num_key_value_heads", base::str(info.kv_heads), base::str("a divisor of num_attention_heads, ", info.heads));
  }
  info.eos_ids = read_eos_ids(object);
  return info;
}

}  // namespace deepspeed
