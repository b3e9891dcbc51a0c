// Ranks whose models differ are told so before they exchange anything.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>
#include <mutex>

#include "engine/shard_check.h"
#include "engine/small_models.h"

namespace deepspeed {
namespace {

using testing::config_json;

struct OrderedNet : torch::nn::Module {
  explicit OrderedNet(bool swapped, bool frozen = false) {
    const auto add = [&](const char* name, int64_t size) { register_parameter(name, torch::ones({size}), !(frozen && size == 3)); };
    if (swapped)
      add("second", 4), add("first", 3);
    else
      add("first", 3), add("second", 4);
  }
};

std::pair<ErrorCode, std::string> start(std::shared_ptr<Communicator> communicator, std::shared_ptr<torch::nn::Module> net, int stage) {
  EngineOptions options;
  options.config_json = config_json({.stage = stage});
  options.communicator = std::move(communicator);
  try {
    initialize(std::move(net), options);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kInternal, ""};
}

TEST(ShardCheck, OtherOrderOfParametersIsE3088OnAllRanksWithBothSides) {
  for (const int stage : {0, 1, 3}) {
    run_ranks_as_threads(3, [&](std::shared_ptr<Communicator> communicator) {
      const auto [code, text] = start(communicator, std::make_shared<OrderedNet>(communicator->rank() == 2), stage);
      EXPECT_EQ(code, ErrorCode::kShardLayout) << text;
      EXPECT_NE(text.find("E3088"), std::string::npos) << text;
      EXPECT_NE(text.find("got parameter second [4] on rank 2, allowed parameter first [3] as on rank 0"), std::string::npos) << text;
      EXPECT_NE(text.find("in the same order"), std::string::npos) << text;
    });
  }
}

TEST(ShardCheck, FrozenOnOneRankAndAnotherStageAreE3088) {
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto [code, text] = start(communicator, std::make_shared<OrderedNet>(false, communicator->rank() == 1), 1);
    EXPECT_EQ(code, ErrorCode::kShardLayout) << text;
    EXPECT_NE(text.find("got parameter first [3] frozen on rank 1"), std::string::npos) << text;
    std::tie(code, text) = start(communicator, std::make_shared<OrderedNet>(false), communicator->rank() == 1 ? 3 : 2);
    EXPECT_EQ(code, ErrorCode::kShardLayout) << text;
    EXPECT_NE(text.find("got ZeRO stage 3 on rank 1, allowed ZeRO stage 2 as on rank 0"), std::string::npos) << text;
    EXPECT_EQ(start(communicator, std::make_shared<OrderedNet>(false), 2).second, "");
  });
}

TEST(ShardCheck, TheVariableTurnsItIntoAWarning) {
  ::setenv("DS_DISABLE_SHARD_CHECK", "1", 1);
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    engine::compare_layouts(*communicator, communicator->rank() == 0 ? "a\n" : "b\n", "here", at::Tensor(torch::empty({0})));
  });
  ::unsetenv("DS_DISABLE_SHARD_CHECK");
}

}  // namespace
}  // namespace deepspeed
