// A job that changes its number of ranks goes on as if it had not.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include "base/files.h"
#include "deepspeed/experimental/dynamic_sharding.h"
#include "engine/small_models.h"

namespace deepspeed {
namespace {

namespace sharding = experimental::dynamic_sharding;
using testing::OddNet;
using testing::rows;

constexpr int kTrainBatch = 24, kMicro = 2, kStepsEach = 3;

std::shared_ptr<OddNet> make_net() {
  static std::mutex construction;
  std::lock_guard lock(construction);
  return std::make_shared<OddNet>();
}

EngineOptions options_for(std::shared_ptr<Communicator> communicator, int stage) {
  EngineOptions options;
  options.config_json = R"({train_batch_size: 24, train_micro_batch_size_per_gpu: 2, gradient_clipping: 0.5,
    optimizer: {type: "AdamW", params: {lr: 0.01}}, scheduler: {type: "WarmupLR", params: {warmup_num_steps: 10, warmup_max_lr: 0.02}},
    zero_optimization: {stage: )" +
                        std::to_string(stage) + "}}";
  options.communicator = std::move(communicator);
  return options;
}

// The mean loss of a step over the same 24 rows, whoever computes them.
double step(OddNet& net, Engine& engine, Communicator& ranks, int number) {
  const int64_t accumulation = engine.get_batch_info().gradient_accumulation_steps;
  auto sum = torch::zeros({1}, torch::kDouble);
  for (int64_t micro = 0; micro < accumulation; ++micro) {
    auto loss = net.forward(rows(number, static_cast<int>(micro * ranks.size() + ranks.rank())));
    engine.backward(loss);
    engine.step();
    sum += loss.item<double>();
  }
  ranks.all_reduce(sum, ReduceOp::kSum, "losses")->wait();
  return sum.item<double>() / (kTrainBatch / kMicro);
}

TEST(DynamicSharding, TheCurveGoesOnWithOtherNumbersOfRanks) {
  const std::string directory = (std::filesystem::temp_directory_path() / ("ds_resharding_" + std::to_string(::getpid()))).string();
  for (const int stage : {0, 2, 3}) {
    std::vector<double> steady, changing;
    const auto log = [](std::vector<double>& curve, Communicator& ranks, double loss) {
      if (ranks.rank() == 0) curve.push_back(loss);
    };
    const std::vector<int> worlds = {2, 4, 3, 1};
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> ranks) {
      auto net = make_net();
      auto engine = initialize(std::static_pointer_cast<torch::nn::Module>(net), options_for(ranks, stage));
      for (int number = 0; number < kStepsEach * static_cast<int>(worlds.size()); ++number)
        log(steady, *ranks, step(*net, *engine, *ranks, number));
    });
    int number = 0;
    for (size_t part = 0; part < worlds.size(); ++part) {
      run_ranks_as_threads(worlds[part], [&](std::shared_ptr<Communicator> ranks) {
        auto net = make_net();
        std::unique_ptr<Engine> engine;
        if (part == 0) {
          engine = initialize(std::static_pointer_cast<torch::nn::Module>(net), options_for(ranks, stage));
        } else {
          auto taken = sharding::take_over(net, options_for(ranks, stage), directory);
          engine = std::move(taken.engine);
          EXPECT_EQ(taken.client_state, "{\"part\":" + std::to_string(part - 1) + "}");
          EXPECT_EQ(engine->get_batch_info().train_batch_size, kTrainBatch);
          EXPECT_EQ(engine->global_steps(), number);
        }
        for (int i = 0; i < kStepsEach; ++i) log(changing, *ranks, step(*net, *engine, *ranks, number + i));
        sharding::hand_over(*engine, directory, "{\"part\":" + std::to_string(part) + "}");
      });
      number += kStepsEach;
    }
    ASSERT_EQ(changing.size(), steady.size());
    for (size_t i = 0; i < steady.size(); ++i) EXPECT_NEAR(changing[i], steady[i], 2e-6) << "stage " << stage << " step " << i;
  }
  std::filesystem::remove_all(directory);
}

TEST(DynamicSharding, WhatCannotBeIsRefused) {
  const std::string directory = (std::filesystem::temp_directory_path() / ("ds_resharding_bad_" + std::to_string(::getpid()))).string();
  const auto error_of = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> ranks) {
    auto net = make_net();
    auto engine = initialize(std::static_pointer_cast<torch::nn::Module>(net), options_for(ranks, 2));
    engine->backward(net->forward(rows(0, 0)));
    engine->step();
    EXPECT_NE(error_of([&] { sharding::hand_over(*engine, directory); }).find("hand_over: got a call inside an accumulation"),
              std::string::npos);
    for (int micro = 1; micro < 6; ++micro) {
      engine->backward(net->forward(rows(0, micro)));
      engine->step();
    }
    sharding::hand_over(*engine, directory);
  });
  // 24 rows are no whole number of micro batches of 2 on 5 ranks.
  run_ranks_as_threads(5, [&](std::shared_ptr<Communicator> ranks) {
    const std::string text = error_of([&] { sharding::take_over(make_net(), options_for(ranks, 2), directory); });
    EXPECT_NE(text.find("E1100"), std::string::npos) << text;
  });
  EXPECT_TRUE(base::exists(directory + "/handed_over/index.sqlite"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace deepspeed
