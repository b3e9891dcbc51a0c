// A resumed run has the bits of one that never stopped: stages x precisions x accumulation x dropout.
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <mutex>

#include "checkpoint/small_runs.h"

namespace deepspeed {
namespace {

using testing::config_json;
using testing::fresh_directory;
using testing::rows;

struct DropNet : torch::nn::Module {
  explicit DropNet(double share) {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(5, 16));
    second = register_module("second", torch::nn::Linear(16, 3));
    drop = register_module("drop", torch::nn::Dropout(share));
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(drop(torch::tanh(first(x)))).to(torch::kFloat).pow(2).mean(); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Dropout drop{nullptr};
};

struct MatrixRun {
  std::shared_ptr<DropNet> net;
  std::unique_ptr<Engine> engine;
  at::ScalarType type;
  int accumulation;

  double step(int number) {
    double sum = 0;
    for (int micro = 0; micro < accumulation; ++micro) {
      auto loss = net->forward(rows(number, micro).to(type));
      engine->backward(loss);
      engine->step();
      sum += loss.item<double>();
    }
    return sum;
  }
};

// Stage, precision, accumulation, dropout. Ranks that are threads share one random generator, so dropout goes with one rank.
class ResumeMatrix : public ::testing::TestWithParam<std::tuple<int, std::string, int, bool>> {};

TEST_P(ResumeMatrix, IsBitForBit) {
  const auto& [stage, precision, accumulation, dropout] = GetParam();
  const std::string directory = fresh_directory("matrix");
  const std::string more = precision == "fp32"   ? ""
                           : precision == "bf16" ? R"(, "bf16": {"enabled": true})"
                                                 : R"(, "fp16": {"enabled": true, "initial_scale_power": 10, "loss_scale_window": 2})";
  const auto make_run = [&, stage = stage, accumulation = accumulation, dropout = dropout](std::shared_ptr<Communicator> communicator) {
    static std::mutex construction;
    MatrixRun run{nullptr, nullptr, precision == "fp32" ? at::kFloat : precision == "bf16" ? at::kBFloat16 : at::kHalf, accumulation};
    {
      std::lock_guard lock(construction);
      run.net = std::make_shared<DropNet>(dropout ? 0.4 : 0.0);
    }
    EngineOptions options;
    options.config_json = config_json({.stage = stage, .accumulation = accumulation, .more = more});
    options.communicator = std::move(communicator);
    run.engine = initialize(std::static_pointer_cast<torch::nn::Module>(run.net), options);
    return run;
  };
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
  std::mutex mutex;
  run_ranks_as_threads(dropout ? 1 : 2, [&](std::shared_ptr<Communicator> communicator) {
    auto run = make_run(communicator);
    if (communicator->rank() == 0) torch::manual_seed(99);
    for (int step = 0; step < 5; ++step) run.step(step);
    run.engine->save_checkpoint(directory);
    std::vector<double> mine;
    for (int step = 5; step < 10; ++step) mine.push_back(run.step(step));
    auto values = run.engine->full_parameters();
    std::lock_guard lock(mutex);
    if (communicator->rank() == 0) losses = mine, weights = values;
  });
  run_ranks_as_threads(dropout ? 1 : 2, [&](std::shared_ptr<Communicator> communicator) {
    auto run = make_run(communicator);
    run.step(77);
    run.engine->load_checkpoint(directory);
    std::vector<double> mine;
    for (int step = 5; step < 10; ++step) mine.push_back(run.step(step));
    auto values = run.engine->full_parameters();
    if (communicator->rank() != 0) return;
    EXPECT_EQ(mine, losses);
    for (const auto& [name, value] : weights) EXPECT_TRUE(torch::equal(value, values.at(name))) << name;
  });
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(All, ResumeMatrix,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values("fp32", "bf16", "fp16"),
                                            ::testing::Values(1, 2), ::testing::Bool()),
                         [](const auto& info) {
                           return "stage" + std::to_string(std::get<0>(info.param)) + std::get<1>(info.param) + "x" +
                                  std::to_string(std::get<2>(info.param)) + (std::get<3>(info.param) ? "dropout" : "");
                         });

// World 1 -> 2 -> 4 -> 3 -> 1 with no step between: the states come back to the last bit.
TEST(Reshard, StatesAreTheSameAfterAnyChainOfWorldSizes) {
  const std::string directory = fresh_directory("chain");
  std::map<std::string, at::Tensor> values;
  std::vector<double> losses;
  const std::vector<int> worlds = {1, 2, 4, 3, 1};
  for (size_t link = 0; link < worlds.size(); ++link) {
    run_ranks_as_threads(worlds[link], [&](std::shared_ptr<Communicator> communicator) {
      auto ranks = testing::make(communicator, link % 2 == 0 ? 3 : 1);
      if (link == 0) {
        for (int step = 0; step < 4; ++step) testing::train_step(ranks, step);
      } else {
        ranks.engine->load_checkpoint(directory, "link" + std::to_string(link - 1));
      }
      ranks.engine->save_checkpoint(directory, "link" + std::to_string(link));
      std::map<std::string, at::Tensor> all = ranks.engine->full_parameters(/*everywhere=*/true);
      for (const auto& parameter : ranks.net->named_parameters()) {
        for (const char* state : {"exp_avg", "exp_avg_sq"}) {
          all[parameter.key() + state] = ranks.engine->safe_get_full_optimizer_state(parameter.value(), state);
        }
      }
      if (communicator->rank() != 0) return;
      if (link == 0) values = all;
      ASSERT_EQ(all.size(), values.size());
      for (const auto& [name, value] : all) EXPECT_TRUE(torch::equal(value, values.at(name))) << name << " at link " << link;
    });
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace deepspeed
