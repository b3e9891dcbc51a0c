// Checkpoints of the real DeepSpeed in runs of another stage, world and precision than they were saved with.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "deepspeed/comm.h"
#include "deepspeed/engine.h"
#include "deepspeed/error.h"
#include "deepspeed/models.h"
#include "deepspeed/safetensors.h"

namespace deepspeed {
namespace {

namespace fs = std::filesystem;
const fs::path kGolden = fs::path(DEEPSPEED_SOURCE_DIR) / "tests" / "golden";

struct Loaded {
  std::map<std::string, at::Tensor> weights, moments;  // full, fp32
};

Loaded load(const fs::path& directory, const nlohmann::json& config, int world) {
  Loaded loaded;
  run_ranks_as_threads(world, [&](std::shared_ptr<Communicator> communicator) {
    auto model = load_model((kGolden / "models" / "nano-llama").string());
    EngineOptions options;
    options.config_json = config.dump();
    options.communicator = communicator;
    options.device = "cpu";
    auto engine = initialize(model, options);
    engine->load_checkpoint(directory.string());
    for (const auto& item : model->named_parameters()) {
      const at::Tensor weight = engine->safe_get_full_fp32_param(item.value());
      const at::Tensor moment = engine->safe_get_full_optimizer_state(item.value(), "exp_avg");
      if (communicator->rank() == 0) {
        loaded.weights[item.key()] = weight;
        loaded.moments[item.key()] = moment;
      }
    }
  });
  return loaded;
}

nlohmann::json config_of(int stage, bool bf16) {
  return {{"train_micro_batch_size_per_gpu", 1},
          {"bf16", {{"enabled", bf16}}},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
          {"zero_optimization", {{"stage", stage}}}};
}

TEST(DeepSpeedCheckpoint, IsLoadedAtAnyStageWorldAndPrecision) {
  for (const char* name : {"stage1-bf16", "stage2-fp32", "stage3-fp32"}) {
    const auto expected = load_safetensors((kGolden / "checkpoints" / name / "zero_to_fp32.safetensors").string());
    std::map<std::string, at::Tensor> moments;
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int world : {1, 3}) {
        for (const bool bf16 : {false, true}) {
          for (const char* form : {"zero", "universal"}) {
            SCOPED_TRACE(std::string(name) + " " + form + ", stage " + std::to_string(stage) + ", world " + std::to_string(world) +
                         (bf16 ? ", bf16" : ", fp32"));
            const Loaded loaded = load(kGolden / "checkpoints" / name / form, config_of(stage, bf16), world);
            ASSERT_EQ(loaded.weights.size(), expected.size());
            if (moments.empty()) moments = loaded.moments;
            for (const auto& [parameter, value] : expected) {
              EXPECT_TRUE(at::equal(loaded.weights.at(parameter), value)) << parameter;
              EXPECT_TRUE(at::equal(loaded.moments.at(parameter), moments.at(parameter))) << parameter;
              EXPECT_GT(loaded.moments.at(parameter).abs().max().item<float>(), 0) << parameter;
            }
          }
        }
      }
    }
  }
}

TEST(DeepSpeedCheckpoint, OfAnotherOptimizerIsAnErrorThatListsBothSetsOfStates) {
  auto config = config_of(1, false);
  config["optimizer"]["type"] = "Lion";
  try {
    load(kGolden / "checkpoints" / "stage2-fp32" / "zero", config, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
    const std::string text = error.what();
    EXPECT_NE(text.find("got [exp_avg, exp_avg_sq] there, allowed [moment]"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace deepspeed
