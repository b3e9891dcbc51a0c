#include "deepspeed/model_info.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace deepspeed {
namespace {

nlohmann::json llama() {
  return {{"model_type", "llama"},    {"vocab_size", 256},        {"hidden_size", 64},        {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"intermediate_size", 176}, {"rms_norm_eps", 1e-5}};
}

ModelInfo info_of(const nlohmann::json& config) { return parse_model_info(config.dump()); }

TEST(ModelInfo, RotaryBaseIsFoundInBothPlaces) {
  auto config = llama();
  EXPECT_EQ(info_of(config).rope.theta, 10000.0);
  config["rope_theta"] = 500000.0;
  EXPECT_EQ(info_of(config).rope.theta, 500000.0);
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 32.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(info_of(config).rope.type, "llama3");
  EXPECT_EQ(info_of(config).rope.theta, 500000.0);
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 1e6}, {"rope_type", "default"}};
  EXPECT_EQ(info_of(config).rope.theta, 1e6);
}

TEST(ModelInfo, AbsentKeysHaveTheDefaultsOfTheFormat) {
  auto config = llama();
  config.erase("num_key_value_heads");
  config["head_dim"] = nullptr;
  const ModelInfo info = info_of(config);
  EXPECT_EQ(info.kv_heads, 4);
  EXPECT_EQ(info.head_dim, 16);
  EXPECT_FALSE(info.tied);
  EXPECT_FALSE(info.qkv_bias);
  const ModelInfo gpt2 = info_of({{"model_type", "gpt2"}});
  EXPECT_EQ(gpt2.vocab_size, 50257);
  EXPECT_EQ(gpt2.intermediate_size, 3072);
  EXPECT_TRUE(gpt2.tied);
}

TEST(ModelInfo, EndTokensAreOneOrMany) {
  auto config = llama();
  EXPECT_TRUE(info_of(config).eos_ids.empty());
  config["eos_token_id"] = 2;
  EXPECT_EQ(info_of(config).eos_ids, std::vector<int64_t>{2});
  config["eos_token_id"] = {2, 3};
  EXPECT_EQ(info_of(config).eos_ids, (std::vector<int64_t>{2, 3}));
}

TEST(ModelInfo, WhatIsWrongIsNamed) {
  struct Case {
    const char* key;
    nlohmann::json value;
    ErrorCode code;
  };
  for (const Case& c : std::vector<Case>{{"vocab_size", nullptr, ErrorCode::kModelFormat},
                                         {"vocab_size", "256", ErrorCode::kModelFormat},
                                         {"hidden_size", -1, ErrorCode::kModelFormat},
                                         {"hidden_size", 66, ErrorCode::kModelFormat},
                                         {"num_key_value_heads", 3, ErrorCode::kModelFormat},
                                         {"num_hidden_layers", 1e30, ErrorCode::kModelFormat},
                                         {"head_dim", 7, ErrorCode::kModelFormat},
                                         {"tie_word_embeddings", 1, ErrorCode::kModelFormat},
                                         {"eos_token_id", "end", ErrorCode::kModelFormat},
                                         {"model_type", "bert", ErrorCode::kNotBuilt},
                                         {"hidden_act", "quick_gelu", ErrorCode::kNotBuilt},
                                         {"use_sliding_window", true, ErrorCode::kNotBuilt},
                                         {"layer_types", {"sliding_attention"}, ErrorCode::kNotBuilt},
                                         {"rope_scaling", {{"type", "yarn"}}, ErrorCode::kNotBuilt},
                                         {"quantization_config", {{"bits", 4}}, ErrorCode::kNotBuilt}}) {
    auto config = llama();
    config[c.key] = c.value;
    try {
      info_of(config);
      ADD_FAILURE() << "accepted " << c.key << " " << c.value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), c.code) << error.what();
      EXPECT_NE(std::string(error.what()).find(c.key), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(parse_model_info("{"), Error);
  EXPECT_THROW(parse_model_info("[]"), Error);
}

}  // namespace
}  // namespace deepspeed
