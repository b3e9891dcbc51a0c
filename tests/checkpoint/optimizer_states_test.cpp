// Checkpoints name what the optimizer keeps: every optimizer resumes, another one is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include "engine/small_models.h"

namespace deepspeed {
namespace {

using testing::OddNet;
using testing::rows;

struct Ranks {
  std::shared_ptr<OddNet> net;
  std::unique_ptr<Engine> engine;

  double step(int number) {
    auto loss = net->forward(rows(number, 0));
    engine->backward(loss);
    engine->step();
    return loss.item<double>();
  }
};

Ranks make(std::shared_ptr<Communicator> communicator, const std::string& optimizer) {
  static std::mutex construction;  // the global generator seeds the weights
  Ranks ranks;
  {
    std::lock_guard lock(construction);
    ranks.net = std::make_shared<OddNet>();
  }
  EngineOptions options;
  options.config_json = R"({"train_micro_batch_size_per_gpu": 2, "optimizer": )" + optimizer + R"(, "zero_optimization": {"stage": 2}})";
  options.communicator = std::move(communicator);
  ranks.engine = initialize(ranks.net, options);
  return ranks;
}

std::string fresh_directory() {
  const auto path = std::filesystem::temp_directory_path() / ("ds_optimizer_states_" + std::to_string(::getpid()));
  std::filesystem::remove_all(path);
  return path.string();
}

constexpr const char* kAdam = R"({"type": "Adam"})";
constexpr const char* kOptimizers[] = {kAdam,
                                       R"({"type": "AdamW", "params": {"torch_adam": true, "amsgrad": true}})",
                                       R"({"type": "Muon"})",
                                       R"({"type": "Lamb"})",
                                       R"({"type": "Lion"})",
                                       R"({"type": "Adagrad"})",
                                       R"({"type": "SGD"})",
                                       R"({"type": "SGD", "params": {"momentum": 0.9}})"};

TEST(OptimizerStates, EveryOptimizerResumesBitForBit) {
  for (const char* optimizer : kOptimizers) {
    const std::string directory = fresh_directory();
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto first = make(communicator, optimizer);
      for (int i = 0; i < 3; ++i) first.step(i);
      first.engine->save_checkpoint(directory, "x");
      auto second = make(communicator, optimizer);
      second.step(9);  // a state that must be replaced completely
      second.engine->load_checkpoint(directory, "x");
      for (int i = 3; i < 6; ++i) EXPECT_EQ(first.step(i), second.step(i)) << optimizer;
    });
    std::filesystem::remove_all(directory);
  }
}

TEST(OptimizerStates, AnotherOptimizersAreRefusedByName) {
  const std::string directory = fresh_directory();
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto adam = make(communicator, kAdam);
    adam.step(0);
    adam.engine->save_checkpoint(directory, "x");
    auto lion = make(communicator, R"({"type": "Lion"})");
    try {
      lion.engine->load_checkpoint(directory, "x");
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
      EXPECT_NE(std::string(error.what()).find("got [moment, variance] there, allowed [moment]"), std::string::npos) << error.what();
    }
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace deepspeed
