// Safe getters and setters: the same values whatever the stage, the world, the precision and who shares memory.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <mutex>

#include "engine/one_weight.h"

namespace deepspeed {
namespace {

using testing::contains;
using testing::error_of;
using testing::one_weight;

// Parameters of 15, 5 and 4 elements, the last one frozen: shards of any world cut across them.
struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(5);
    linear = register_module("linear", torch::nn::Linear(3, 5));
    frozen = register_parameter("frozen", torch::arange(4).to(torch::kFloat), /*requires_grad=*/false);
  }
  torch::Tensor forward() { return linear(torch::ones({1, 3}).to(frozen.scalar_type())).to(torch::kFloat).sum() + frozen.sum(); }
  torch::nn::Linear linear{nullptr};
  torch::Tensor frozen;
};

struct Trained {
  std::shared_ptr<Net> net;
  std::unique_ptr<Engine> engine;
  void step() {
    engine->backward(net->forward());
    engine->step();
  }
};

using Case = std::tuple<int, int, bool, bool>;  // stage, world, share memory, bf16

class Access : public ::testing::TestWithParam<Case> {
 protected:
  int stage() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  bool bf16() const { return std::get<3>(GetParam()); }
  void on_ranks(const std::function<void(Trained&, Communicator&)>& body, const std::string& optimizer = "") {
    run_ranks_as_threads(world(), [&](std::shared_ptr<Communicator> communicator) {
      Trained run;
      {
        static std::mutex construction;
        std::lock_guard lock(construction);
        run.net = std::make_shared<Net>();
      }
      EngineOptions options;
      options.config_json = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": )" +
                            (optimizer.empty() ? R"({"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0}})" : optimizer) +
                            R"(, "zero_optimization": {"stage": )" + std::to_string(stage()) +
                            R"(, "stage3_param_persistence_threshold": 6})" + (bf16() ? R"(, "bf16": {"enabled": true})" : "") + "}";
      options.communicator = communicator;
      options.share_memory = std::get<2>(GetParam());
      run.engine = initialize(std::shared_ptr<torch::nn::Module>(run.net), options);
      body(run, *communicator);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(All, Access,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 2, 3), ::testing::Bool(),
                                            ::testing::Bool()));

TEST_P(Access, FullParametersAreReadAndWritten) {
  on_ranks([&](Trained& run, Communicator&) {
    auto& engine = *run.engine;
    const auto weight = run.net->linear->weight, bias = run.net->linear->bias, frozen = run.net->frozen;
    run.step();
    const auto before = engine.full_parameters(true);
    EXPECT_TRUE(torch::equal(engine.safe_get_full_fp32_param(weight), before.at("linear.weight")));
    EXPECT_TRUE(torch::equal(engine.safe_get_full_fp32_param(bias), before.at("linear.bias")));
    EXPECT_TRUE(torch::equal(engine.safe_get_full_fp32_param(frozen), torch::arange(4).to(torch::kFloat)));
    // 1/3 is not in bf16: the master keeps it, the working copy rounds it.
    const auto ramp = torch::arange(15).view({5, 3}).to(torch::kFloat) / 3;
    engine.safe_set_full_fp32_param(weight, ramp);
    engine.safe_set_full_fp32_param(bias, torch::zeros({5}, torch::kDouble));
    engine.safe_set_full_fp32_param(frozen, torch::ones({4}));
    EXPECT_TRUE(torch::equal(engine.safe_get_full_fp32_param(weight), ramp));
    EXPECT_TRUE(torch::equal(engine.full_parameters(true).at("linear.weight"), ramp));
    {
      torch::NoGradGuard no_grad;
      const auto working = bf16() ? ramp.to(torch::kBFloat16) : ramp;
      const auto whole = engine.gathered_parameters({weight, frozen});
      EXPECT_TRUE(torch::equal(weight, working));
      EXPECT_TRUE(torch::equal(frozen.to(torch::kFloat), torch::ones({4})));
    }
    // The next forward, gather and update start from there.
    const auto loss = run.net->forward();
    EXPECT_NEAR(loss.item<double>(), ramp.sum().item<double>() + 4, bf16() ? 0.5 : 1e-4);
    engine.backward(loss);
    engine.step();
    EXPECT_FALSE(torch::equal(engine.safe_get_full_fp32_param(weight), ramp));
    EXPECT_TRUE(torch::allclose(engine.safe_get_full_fp32_param(weight), ramp - 0.1, 1e-4, 0.1));
  });
}

TEST_P(Access, LocalPartsMakeUpTheWhole) {
  on_ranks([&](Trained& run, Communicator& communicator) {
    auto& engine = *run.engine;
    const auto weight = run.net->linear->weight;
    run.step();
    const auto local = engine.safe_get_local_fp32_param(weight);
    auto count = torch::full({1}, static_cast<double>(local.numel()), torch::kDouble);
    communicator.all_reduce(count, ReduceOp::kSum, "elements")->wait();
    EXPECT_EQ(count.item<double>(), stage() == 0 ? 15 * world() : 15);
    const auto before = engine.safe_get_full_fp32_param(weight);
    engine.safe_set_local_fp32_param(weight, local * 2);
    EXPECT_TRUE(torch::equal(engine.safe_get_full_fp32_param(weight), before * 2));
    {
      const auto whole = engine.gathered_parameters({weight});
      EXPECT_TRUE(torch::equal(weight, (before * 2).to(weight.scalar_type())));
    }
    for (const char* state : {"exp_avg", "variance"}) {
      const auto part = engine.safe_get_local_optimizer_state(weight, state);
      EXPECT_EQ(part.sizes(), local.sizes());
      engine.safe_set_local_optimizer_state(weight, state, part + 1);
      EXPECT_TRUE(torch::equal(engine.safe_get_local_optimizer_state(weight, state), part + 1));
    }
    engine.backward(run.net->forward());
    const auto gradient = engine.safe_get_local_grad(weight);
    EXPECT_TRUE(torch::equal(gradient, torch::ones(local.sizes())));
    engine.safe_set_local_grad(weight, gradient * 3);
    EXPECT_TRUE(torch::allclose(engine.safe_get_full_grad(weight), torch::full({5, 3}, 3.0)));
    engine.step();
  });
}

// Known fault A15: the norm and the clipping go by the gradients that the caller left.
TEST_P(Access, A15GradientsThatTheCallerSetAreTheOnesThatCount) {
  on_ranks(
      [&](Trained& run, Communicator&) {
        auto& engine = *run.engine;
        const auto weight = run.net->linear->weight, bias = run.net->linear->bias;
        engine.backward(run.net->forward());
        const auto gradient = engine.safe_get_full_grad(weight);
        EXPECT_TRUE(torch::allclose(gradient, torch::ones({5, 3}), 1e-6, 1e-6));
        engine.safe_set_full_grad(weight, torch::zeros({5, 3}));
        engine.safe_set_full_grad(bias, torch::tensor({3.0, 4.0, 0.0, 0.0, 0.0}));
        EXPECT_TRUE(torch::allclose(engine.safe_get_full_grad(bias), torch::tensor({3.0f, 4.0f, 0.0f, 0.0f, 0.0f}), 1e-6, 1e-6));
        const auto before = engine.full_parameters(true);
        engine.step();
        EXPECT_NEAR(engine.get_global_grad_norm().value(), 5.0, 1e-6);
        const auto after = engine.full_parameters(true);
        EXPECT_TRUE(torch::equal(after.at("linear.weight"), before.at("linear.weight")));
        const auto moved = before.at("linear.bias") - after.at("linear.bias");
        EXPECT_TRUE(torch::allclose(moved, torch::tensor({3.0f, 4.0f, 0.0f, 0.0f, 0.0f}), 1e-5, 1e-5)) << moved;
        EXPECT_TRUE(contains(error_of([&] { engine.safe_get_full_grad(weight); }), "no gradient of all ranks")) << "after step()";
        // Not a number, set on purpose: seen as any other.
        engine.backward(run.net->forward());
        engine.safe_set_full_grad(weight, torch::full({5, 3}, NAN));
        engine.step();
        EXPECT_FALSE(engine.was_step_applied());
      },
      R"({"type": "SGD", "params": {"lr": 1.0}})");
}

TEST_P(Access, OptimizerStatesAreReadAndWritten) {
  on_ranks([&](Trained& run, Communicator&) {
    auto& engine = *run.engine;
    const auto weight = run.net->linear->weight;
    run.step();
    EXPECT_TRUE(torch::allclose(engine.safe_get_full_optimizer_state(weight, "exp_avg"), torch::full({5, 3}, 0.1)));
    EXPECT_TRUE(torch::allclose(engine.safe_get_full_optimizer_state(weight, "exp_avg_sq"), torch::full({5, 3}, 0.001)));
    const auto ramp = torch::arange(15).view({5, 3}).to(torch::kFloat);
    engine.safe_set_full_optimizer_state(weight, "moment", ramp);
    EXPECT_TRUE(torch::equal(engine.safe_get_full_optimizer_state(weight, "moment"), ramp));
    run.step();
    EXPECT_TRUE(torch::allclose(engine.safe_get_full_optimizer_state(weight, "exp_avg"), ramp * 0.9 + 0.1));
    EXPECT_TRUE(torch::allclose(engine.safe_get_full_optimizer_state(run.net->linear->bias, "exp_avg"), torch::full({5}, 0.19)));
  });
}

TEST(ParameterAccess, MisuseIsNamed) {
  auto run = one_weight(nullptr, 2);
  auto& engine = *run.engine;
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_TRUE(contains(message, "E1300") && contains(message, part)) << message;
  };
  expect(error_of([&] { engine.safe_get_full_fp32_param(torch::ones({3})); }), "no parameter of this engine");
  expect(error_of([&] { engine.safe_get_full_grad(run.net->w); }), "parameter w");
  expect(error_of([&] { engine.safe_get_full_optimizer_state(run.net->w, "exp_avg"); }), "allowed for SGD: none");
  expect(error_of([&] { engine.safe_set_full_fp32_param(run.net->w, torch::ones({2})); }), "allowed a floating type of shape [3]");
  expect(error_of([&] { engine.safe_set_full_fp32_param(run.net->w, torch::ones({3}, torch::kLong)); }), "Long");
  expect(error_of([&] { engine.safe_set_full_fp32_param(run.net->w, torch::Tensor()); }), "no tensor");
}

// The loss scale of fp16 is no part of a gradient.
TEST(ParameterAccess, GradientsOfFp16AreUnscaled) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto run = one_weight(communicator, stage, 1, R"(, "fp16": {"enabled": true, "initial_scale_power": 8})");
      run.backward(communicator->rank() + 1);
      EXPECT_TRUE(torch::equal(run.engine->safe_get_full_grad(run.net->w), torch::full({3}, 1.5)));
      run.engine->safe_set_full_grad(run.net->w, torch::full({3}, 0.5));
      run.engine->step();
      EXPECT_TRUE(torch::equal(run.weight(), torch::full({3}, -0.5)));
    });
  }
}

// In stages 0 and 1 gradients are of all ranks at the boundary only, from stage 2 on after every backward().
TEST(ParameterAccess, GradientsWithinAnAccumulation) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto run = one_weight(communicator, stage, 2);
      run.backward(communicator->rank() + 1);
      if (stage < 2) {
        EXPECT_TRUE(contains(error_of([&] { run.engine->safe_get_full_grad(run.net->w); }), "accumulation boundary"));
      } else {
        EXPECT_TRUE(torch::equal(run.engine->safe_get_full_grad(run.net->w), torch::full({3}, 0.75)));
      }
      run.engine->step();
      run.backward(communicator->rank() + 1);
      EXPECT_TRUE(torch::equal(run.engine->safe_get_full_grad(run.net->w), torch::full({3}, 1.5)));
      run.engine->step();
      EXPECT_TRUE(torch::equal(run.weight(), torch::full({3}, -1.5)));
    });
  }
}

}  // namespace
}  // namespace deepspeed
