// Reading and writing model directories.
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "deepspeed/models.h"
#include "deepspeed/safetensors.h"

namespace deepspeed {
namespace {

namespace fs = std::filesystem;
const std::string kModels = std::string(DEEPSPEED_SOURCE_DIR) + "/tests/golden/models/";

class ModelFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("model_files_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::map<std::string, at::Tensor> weights_of(const CausalLM& model) const {
    std::map<std::string, at::Tensor> out;
    for (const auto& item : model.named_parameters()) out.emplace(item.key(), item.value());
    return out;
  }
  // A directory with the config of `model` and these weights.
  std::string directory(const std::string& model, const std::map<std::string, at::Tensor>& weights) {
    fs::copy_file(kModels + model + "/config.json", folder_ / "config.json", fs::copy_options::overwrite_existing);
    save_safetensors((folder_ / "model.safetensors").string(), weights);
    return folder_.string();
  }
  std::string message_of(const std::string& directory, ErrorCode code) {
    try {
      load_model(directory);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "loaded";
    return "";
  }

  fs::path folder_;
};

TEST_F(ModelFiles, WhatIsExportedLoadsAsTheSameModel) {
  for (const char* name : {"tiny-llama", "tiny-llama-tied", "tiny-gpt2", "tiny-qwen2"}) {
    const auto model = load_model(kModels + name);
    const std::string out = (folder_ / name).string();
    export_model(out, weights_of(*model), model->info(), {.source_directory = kModels + name});
    const auto again = load_model(out);
    const at::Tensor ids = at::randint(96, {2, 9}, at::kLong);
    EXPECT_TRUE(model->logits(ids).equal(again->logits(ids))) << name;
    EXPECT_TRUE(fs::exists(out + "/generation_config.json"));
    EXPECT_EQ(again->info().eos_ids, std::vector<int64_t>{2});
  }
}

TEST_F(ModelFiles, LargeModelsAreCutIntoShards) {
  const auto model = load_model(kModels + "tiny-llama");
  const std::string out = folder_.string();
  export_model(out, weights_of(*model), model->info());
  export_model(out, weights_of(*model), model->info(), {.max_shard_bytes = 100'000});
  EXPECT_FALSE(fs::exists(out + "/model.safetensors")) << "readers would take the old file";
  std::ifstream in(out + "/model.safetensors.index.json");
  const auto index = nlohmann::json::parse(in);
  EXPECT_EQ(index["metadata"]["total_size"], 125248 * 4);
  EXPECT_EQ(index["weight_map"].size(), weights_of(*model).size());
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    EXPECT_EQ(load_safetensors(out + "/" + file.get<std::string>()).count(tensor), 1u);
    EXPECT_LE(fs::file_size(out + "/" + file.get<std::string>()), 110'000u);
  }
  const at::Tensor ids = at::randint(96, {2, 9}, at::kLong);
  EXPECT_TRUE(model->logits(ids).equal(load_model(out)->logits(ids)));
  export_model(out, weights_of(*model), model->info());
  EXPECT_FALSE(fs::exists(out + "/model.safetensors.index.json"));
  EXPECT_TRUE(model->logits(ids).equal(load_model(out)->logits(ids)));
}

TEST_F(ModelFiles, ExportedConfigSaysFloat32) {
  const auto model = load_model(kModels + "tiny-llama");
  ModelInfo info = model->info();
  auto config = nlohmann::json::parse(info.config_json);
  config.erase("dtype");
  config["torch_dtype"] = "bfloat16";
  info.config_json = config.dump();
  export_model(folder_.string(), weights_of(*model), info);
  std::ifstream in(folder_ / "config.json");
  EXPECT_EQ(nlohmann::json::parse(in)["torch_dtype"], "float32");
}

TEST_F(ModelFiles, HalfPrecisionWeightsAreWidened) {
  const auto model = load_model(kModels + "tiny-llama");
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    auto weights = weights_of(*model);
    for (auto& [name, tensor] : weights) tensor = tensor.detach().to(type);
    const auto loaded = load_model(directory("tiny-llama", weights));
    for (const auto& item : loaded->named_parameters()) {
      EXPECT_EQ(item.value().scalar_type(), at::kFloat);
      EXPECT_TRUE(item.value().equal(weights.at(item.key()).to(at::kFloat)));
    }
  }
}

TEST_F(ModelFiles, EveryMisfitIsNamedInOneError) {
  const auto model = load_model(kModels + "tiny-llama");
  auto weights = weights_of(*model);
  weights.erase("model.norm.weight");
  weights.erase("model.layers.1.mlp.up_proj.weight");
  weights["model.layers.7.extra"] = at::ones({2});
  weights["lm_head.weight"] = at::ones({256, 32});
  weights["model.layers.0.input_layernorm.weight"] = at::ones({64}, at::kLong);
  const std::string message = message_of(directory("tiny-llama", weights), ErrorCode::kModelFormat);
  for (const char* part :
       {"missing model.norm.weight", "missing model.layers.1.mlp.up_proj.weight", "unknown model.layers.7.extra",
        "lm_head.weight: got F32 [256, 32], allowed F32, BF16 or F16 [256, 64]", "model.layers.0.input_layernorm.weight: got I64"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TEST_F(ModelFiles, FilesOfBareBaseModelsAndOldBuffersAreAccepted) {
  const auto model = load_model(kModels + "tiny-gpt2");
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : weights_of(*model)) weights[name.substr(std::string("transformer.").size())] = tensor;
  weights["h.0.attn.bias"] = at::ones({1, 1, 4, 4});
  weights["h.0.attn.masked_bias"] = at::ones({});
  const auto loaded = load_model(directory("tiny-gpt2", weights));
  const at::Tensor ids = at::randint(96, {2, 9}, at::kLong);
  EXPECT_TRUE(model->logits(ids).equal(loaded->logits(ids)));
}

TEST_F(ModelFiles, AStoredHeadOfATiedModelIsTheEmbedding) {
  const auto model = load_model(kModels + "tiny-llama-tied");
  auto weights = weights_of(*model);
  weights["lm_head.weight"] = weights.at("model.embed_tokens.weight").detach().clone();
  EXPECT_EQ(load_model(directory("tiny-llama-tied", weights))->named_parameters().contains("lm_head.weight"), false);
  EXPECT_THROW(export_model(folder_.string(), weights, model->info()), Error);
}

TEST_F(ModelFiles, WhatIsMissingIsNamed) {
  EXPECT_NE(message_of((folder_ / "nowhere").string(), ErrorCode::kFile).find("nowhere/config.json"), std::string::npos);
  fs::copy_file(kModels + "tiny-llama/config.json", folder_ / "config.json");
  EXPECT_NE(message_of(folder_.string(), ErrorCode::kFile).find("model.safetensors"), std::string::npos);
  std::ofstream(folder_ / "model.safetensors.index.json") << R"({"weight_map": {"a": "../up.safetensors"}})";
  EXPECT_NE(message_of(folder_.string(), ErrorCode::kModelFormat).find("../up.safetensors"), std::string::npos);
  std::ofstream(folder_ / "model.safetensors.index.json") << "[]";
  message_of(folder_.string(), ErrorCode::kModelFormat);
}

TEST_F(ModelFiles, SafetensorsKeepEveryType) {
  std::map<std::string, at::Tensor> tensors;
  for (const at::ScalarType type :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    tensors[at::toString(type)] = at::randint(2, {3, 5}, at::kLong).to(type).t();
  }
  tensors["scalar"] = at::ones({});
  tensors["empty"] = at::ones({0, 3});
  const std::string path = (folder_ / "x.safetensors").string();
  save_safetensors(path, tensors);
  const auto again = load_safetensors(path);
  ASSERT_EQ(again.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(again.at(name).scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(again.at(name).equal(tensor)) << name;
  }
}

}  // namespace
}  // namespace deepspeed
