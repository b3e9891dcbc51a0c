// Steps whose gradients are not finite: all ranks skip or none, nothing changes, and a run that only skips ends.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/one_weight.h"

namespace deepspeed {
namespace {

using testing::contains;
using testing::error_of;
using testing::one_weight;

// Two parameters in two units, so that a bad element lies in one and not in the other.
struct TwoWeights : torch::nn::Module {
  TwoWeights() {
    a = register_parameter("a", torch::ones({5}));
    b = register_parameter("b", torch::ones({3, 3}));
  }
  torch::Tensor a, b;
};

struct Snapshot {
  std::vector<torch::Tensor> values;
  Snapshot(Engine& engine, const TwoWeights& net) {
    for (const auto& p : {net.a, net.b}) {
      values.push_back(engine.safe_get_full_fp32_param(p));
      for (const char* state : {"exp_avg", "exp_avg_sq"}) values.push_back(engine.safe_get_full_optimizer_state(p, state));
    }
  }
  bool operator==(const Snapshot& other) const {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!torch::equal(values[i], other.values[i])) return false;
    }
    return true;
  }
};

class Injected : public ::testing::TestWithParam<std::tuple<int, int, std::string>> {};

// Known faults A04, A05: an infinite gradient clipped to NaN, or kept in the moments for good.
TEST_P(Injected, A04A05OneBadElementAnywhereChangesNothingAnywhere) {
  const auto& [stage, world, precision] = GetParam();
  run_ranks_as_threads(world, [&, stage = stage, world = world, precision = precision](std::shared_ptr<Communicator> communicator) {
    auto net = std::make_shared<TwoWeights>();
    EngineOptions options;
    options.config_json = R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "gradient_clipping": 1.0,
      "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 50, "warmup_type": "linear"}},
      "zero_optimization": {"stage": )" +
                          std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 6, "reduce_bucket_size": 8})" + precision +
                          "}";
    options.communicator = communicator;
    auto engine = initialize(std::shared_ptr<torch::nn::Module>(net), options);
    const auto step = [&](int bad_rank, int bad_micro, int64_t element, double bad) {
      for (int micro = 0; micro < 2; ++micro) {
        auto a = torch::full({5}, 0.5), b = torch::full({3, 3}, 0.25);
        if (communicator->rank() == bad_rank && micro == bad_micro) {
          if (element < 5) {
            a[element] = bad;
          } else {
            b.view({-1})[element - 5] = bad;
          }
        }
        engine->backward((net->a * a.to(net->a.scalar_type())).sum() + (net->b * b.to(net->b.scalar_type())).sum());
        engine->step();
      }
    };
    step(-1, 0, 0, 0);
    step(-1, 0, 0, 0);
    int64_t skipped = 0;
    int64_t element = 0;
    for (int rank = 0; rank < world; ++rank) {
      for (const int micro : {0, 1}) {
        for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), std::nan("")}) {
          const Snapshot before(*engine, *net);
          const auto rates = engine->get_lr();
          step(rank, micro, element, bad);
          element = (element + 5) % 14;
          EXPECT_FALSE(engine->was_step_applied());
          EXPECT_EQ(engine->skipped_steps(), ++skipped);
          EXPECT_FALSE(engine->get_global_grad_norm().has_value());
          EXPECT_EQ(engine->get_lr(), rates);
          EXPECT_TRUE(before == Snapshot(*engine, *net)) << "rank " << rank << ", micro batch " << micro << ", " << bad;
        }
      }
    }
    EXPECT_EQ(engine->consecutive_skipped_steps(), skipped);
    const Snapshot before(*engine, *net);
    step(-1, 0, 0, 0);
    EXPECT_TRUE(engine->was_step_applied());
    EXPECT_EQ(engine->consecutive_skipped_steps(), 0);
    EXPECT_FALSE(before == Snapshot(*engine, *net));
    for (const auto& value : Snapshot(*engine, *net).values) EXPECT_TRUE(torch::isfinite(value).all().item<bool>());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Injected,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 2, 3, 4),
                                            ::testing::Values("", R"(, "bf16": {"enabled": true, "check_grad_overflow": false})",
                                                              R"(, "fp16": {"enabled": true, "loss_scale": 4})")));

// Known fault D7: finite elements whose sum is not.
TEST(SkippedSteps, D7FiniteElementsOfAnInfiniteSumAreFinite) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto run = one_weight(communicator, stage, 1, R"(, "gradient_clipping": 1.0)");
      run.backward(1.5e38);
      run.engine->step();
      EXPECT_TRUE(run.engine->was_step_applied()) << "stage " << stage;
      EXPECT_TRUE(torch::allclose(run.weight(), torch::full({3}, -1 / std::sqrt(3.0)), 1e-5, 1e-6));
    });
  }
}

TEST(SkippedSteps, ManyInARowEndTheRunByName) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto run = one_weight(communicator, stage, 1, R"(, "max_consecutive_skipped_steps": 3)");
      const auto step = [&](double gradient) {
        run.backward(gradient);
        run.engine->step();
      };
      const double bad = communicator->rank() == 1 ? NAN : 1;
      step(bad);
      step(bad);
      step(1);  // begins the count anew
      step(bad);
      step(bad);
      const auto message = error_of([&] { step(bad); });
      EXPECT_TRUE(contains(message, "E6000") && contains(message, "3 steps in a row")) << message;
      EXPECT_TRUE(torch::equal(run.weight(), torch::full({3}, -1.0)));
    });
  }
}

TEST(SkippedSteps, TheDefaultLimitHoldsWhereNoLossScaleSpeaks) {
  const auto skips = [](const std::string& more) {
    auto run = one_weight(nullptr, 0, 1, more);
    int steps = 0;
    const auto message = error_of([&] {
      for (; steps < 130; ++steps) {
        run.backward(NAN);
        run.engine->step();
      }
    });
    EXPECT_EQ(steps == 130, message.empty()) << message;
    return steps;
  };
  EXPECT_EQ(skips(""), 99);
  EXPECT_EQ(skips(R"(, "bf16": {"enabled": true})"), 99);
  EXPECT_EQ(skips(R"(, "max_consecutive_skipped_steps": 0)"), 130);
  EXPECT_EQ(skips(R"(, "fp16": {"enabled": true, "loss_scale": 1})"), 130);
}

}  // namespace
}  // namespace deepspeed
