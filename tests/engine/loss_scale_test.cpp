// fp16 through the engine: scaled losses, skipped steps, the scale's way into checkpoints.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/small_models.h"

namespace deepspeed {
namespace {

constexpr const char* kScheduler = R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 10,
                                       "warmup_type": "linear"}})";

struct Run {
  torch::nn::Linear net{nullptr};
  std::unique_ptr<Engine> engine;
};

// One weight row of 4: the gradient of sum(net(x)) is the sum of x's rows.
Run make(std::shared_ptr<Communicator> communicator, const std::string& fp16, int stage, const std::string& more = "") {
  Run run;
  run.net = torch::nn::Linear(torch::nn::LinearOptions(4, 1).bias(false));
  EngineOptions options;
  options.config_json =
      R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, "fp16": {"enabled": true)" + fp16 +
      R"(}, "zero_optimization": {"stage": )" + std::to_string(stage) + "}" + more + "}";
  options.communicator = std::move(communicator);
  run.engine = initialize(run.net, options);
  return run;
}

void step(Run& run, float x) {
  run.engine->backward(run.net(torch::full({1, 4}, x, torch::kHalf)).sum());
  run.engine->step();
}

TEST(LossScale, A07A08UpdatesAreThoseOfTheUnscaledGradient) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      for (const char* fp16 :
           {R"(, "loss_scale": 128)", R"(, "initial_scale_power": 8)", R"(, "initial_scale_power": 8, "loss_scale_window": 1)"}) {
        auto run = make(communicator, fp16, stage);
        const auto before = run.engine->full_parameters(true).at("weight");
        for (int i = 0; i < 3; ++i) {
          step(run, 0.25f);
          EXPECT_TRUE(run.engine->was_step_applied());
          EXPECT_EQ(run.engine->get_global_grad_norm().value(), 0.5) << fp16;
        }
        const auto after = run.engine->full_parameters(true).at("weight");
        EXPECT_TRUE(torch::equal(after, before - 0.75f)) << fp16 << " stage " << stage;
      }
    });
  }
}

// Known faults A07, A09, A10: skipped steps move nothing and say so.
TEST(LossScale, A09A10OverflowOnOneRankSkipsTheStepOnAllAndHoldsTheSchedule) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto run = make(communicator, R"(, "initial_scale_power": 4, "hysteresis": 1)", stage, kScheduler);
      EXPECT_EQ(run.engine->get_lr(), std::vector<double>{0.0});
      const auto before = run.engine->full_parameters(true).at("weight");
      // 16 * 8000 is beyond fp16.
      step(run, communicator->rank() == 1 ? 8000.0f : 0.25f);
      EXPECT_FALSE(run.engine->was_step_applied());
      EXPECT_EQ(run.engine->skipped_steps(), 1);
      EXPECT_EQ(run.engine->global_steps(), 1);
      EXPECT_EQ(run.engine->loss_scale(), 8.0);
      EXPECT_EQ(run.engine->get_lr(), std::vector<double>{0.0});
      EXPECT_FALSE(run.engine->get_global_grad_norm().has_value());
      EXPECT_TRUE(torch::equal(run.engine->full_parameters(true).at("weight"), before));
      step(run, 0.25f);
      EXPECT_TRUE(run.engine->was_step_applied());
      EXPECT_EQ(run.engine->loss_scale(), 8.0);
    });
  }
}

TEST(LossScale, OverflowAtTheMinimumIsAnError) {
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto run = make(communicator, R"(, "initial_scale_power": 1, "hysteresis": 1)", 2);
    step(run, 60000.0f);
    EXPECT_EQ(run.engine->loss_scale(), 1.0);
    try {
      step(run, INFINITY);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumerics);
    }
  });
}

TEST(LossScale, CheckpointsCarryTheScale) {
  const auto folder = std::filesystem::temp_directory_path() / ("ds_loss_scale_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto run = make(communicator, R"(, "initial_scale_power": 4, "loss_scale_window": 2)", 3);
    step(run, 8000.0f);  // uses up the tolerance
    step(run, 0.25f);
    run.engine->save_checkpoint(folder.string());
    auto resumed = make(communicator, R"(, "initial_scale_power": 10, "loss_scale_window": 2)", 3);
    resumed.engine->load_checkpoint(folder.string());
    for (auto* each : {&run, &resumed}) {
      EXPECT_EQ(each->engine->loss_scale(), 16.0);
      EXPECT_EQ(each->engine->skipped_steps(), 1);
      step(*each, 8000.0f);
      EXPECT_EQ(each->engine->loss_scale(), 8.0);
      step(*each, 0.25f);
      step(*each, 0.25f);
      step(*each, 0.25f);
      EXPECT_EQ(each->engine->loss_scale(), 16.0);
    }
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace deepspeed
