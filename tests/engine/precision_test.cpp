// Number formats: autocast by configuration and by scope, and the types in which gradients accumulate and travel.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <mutex>

#include "engine/one_weight.h"

namespace deepspeed {
namespace {

using testing::contains;
using testing::error_of;
using testing::one_weight;

constexpr auto kCpu = at::DeviceType::CPU;

struct AutocastScope {
  explicit AutocastScope(at::ScalarType type, bool on = true) : before(at::autocast::is_autocast_enabled(kCpu)) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(kCpu, on);
    at::autocast::set_autocast_dtype(kCpu, type);
  }
  ~AutocastScope() {
    at::autocast::set_autocast_enabled(kCpu, before);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }
  bool before;
};

struct Two : torch::nn::Module {
  Two() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(6, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = first(x);
    seen = h.scalar_type();
    return second(torch::tanh(h)).to(torch::kFloat).pow(2).mean();
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::ScalarType seen = at::kDouble;
};

struct Run {
  std::shared_ptr<Two> net;
  std::unique_ptr<Engine> engine;
};

Run make(std::shared_ptr<Communicator> communicator, int stage, const std::string& more) {
  Run run;
  {
    static std::mutex construction;
    std::lock_guard lock(construction);
    run.net = std::make_shared<Two>();
  }
  EngineOptions options;
  options.config_json = R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": )" +
                        std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0})" + more + "}";
  options.communicator = std::move(communicator);
  options.device = "cpu";
  options.share_memory = false;
  run.engine = initialize(run.net, options);
  return run;
}

torch::Tensor input(int step) { return torch::linspace(-1, 1 + step, 12).view({2, 6}); }

constexpr const char* kAutocast = R"(, "torch_autocast": {"enabled": true, "dtype": "bfloat16"})";

// A loop of torch's own under an autocast scope: same weights to the last bits, at every stage.
TEST(Autocast, EqualsATorchLoopUnderAScope) {
  Two plain;
  for (int step = 0; step < 5; ++step) {
    plain.zero_grad();
    torch::Tensor loss;
    {
      const AutocastScope scope(at::kBFloat16);
      loss = plain.forward(input(step));
    }
    loss.backward();
    torch::NoGradGuard no_grad;
    for (auto& p : plain.parameters()) p.sub_(p.grad(), 0.1);
  }
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool one_scope : {false, true}) {
      run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
        auto run = make(communicator, stage, kAutocast);
        const auto step = [&](int number) {
          run.engine->backward(one_scope ? run.net->forward(input(number))
                                         : run.engine->forward([&] { return run.net->forward(input(number)); }));
          run.engine->step();
          EXPECT_EQ(run.net->seen, at::kBFloat16);
        };
        if (one_scope) {
          // One for the whole loop: casts of weights must not outlive an update.
          const auto scope = run.engine->scope();
          for (int number = 0; number < 5; ++number) step(number);
        } else {
          for (int number = 0; number < 5; ++number) step(number);
        }
        EXPECT_FALSE(at::autocast::is_autocast_enabled(kCpu));
        const auto weights = run.engine->full_parameters(true);
        for (const auto& item : plain.named_parameters()) {
          EXPECT_TRUE(torch::allclose(weights.at(item.key()), item.value(), 1e-6, 1e-7)) << item.key() << ", stage " << stage;
        }
      });
    }
  }
}

TEST(Autocast, ALossFromOutsideTheScopeIsAnError) {
  auto run = make(nullptr, 0, kAutocast);
  const auto message = error_of([&] { run.engine->backward(run.net->forward(input(0))); });
  EXPECT_TRUE(contains(message, "E1300") && contains(message, "engine->forward()")) << message;
  run.engine->backward(run.engine->forward([&] { return run.net->forward(input(0)); }));
  run.engine->step();
}

TEST(Autocast, Fp16ScalesTheLoss) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto run = make(communicator, stage, R"(, "torch_autocast": {"enabled": true, "dtype": "fp16"})");
      EXPECT_EQ(run.engine->loss_scale(), 65536);
      const auto before = run.engine->full_parameters(true);
      run.engine->backward(run.engine->forward([&] { return run.net->forward(input(0)) * (communicator->rank() == 0 ? 1.0 : 1e20); }));
      run.engine->step();
      EXPECT_FALSE(run.engine->was_step_applied());
      EXPECT_EQ(run.engine->loss_scale(), 32768);
      run.engine->backward(run.engine->forward([&] { return run.net->forward(input(0)); }));
      run.engine->step();
      EXPECT_TRUE(run.engine->was_step_applied());
      EXPECT_EQ(run.net->seen, at::kHalf);
      EXPECT_LT(run.engine->get_global_grad_norm().value(), 10);
      EXPECT_FALSE(torch::equal(run.engine->full_parameters(true).at("first.weight"), before.at("first.weight")));
    });
  }
}

// fp16 and bf16 sections over scopes over casts in the model; the override is said once.
TEST(Precision, TheConfigurationComesBeforeTheScopeAroundTheModel) {
  const auto seen = [](const std::string& more, at::ScalarType scope_type) {
    auto run = make(nullptr, 1, more);
    const AutocastScope scope(scope_type);
    const bool sixteen = contains(more, "bf16\": {") || contains(more, "\"fp16\": {");
    const auto type = run.net->first->weight.scalar_type();
    run.engine->backward(run.engine->forward([&] { return run.net->forward(sixteen ? input(0).to(type) : input(0)); }));
    run.engine->step();
    EXPECT_TRUE(at::autocast::is_autocast_enabled(kCpu));
    EXPECT_EQ(at::autocast::get_autocast_dtype(kCpu), scope_type);
    return run.net->seen;
  };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(seen(R"(, "bf16": {"enabled": true})", at::kHalf), at::kBFloat16);
  EXPECT_EQ(seen(R"(, "fp16": {"enabled": true, "loss_scale": 1})", at::kBFloat16), at::kHalf);
  EXPECT_EQ(seen(kAutocast, at::kHalf), at::kBFloat16);
  const std::string log = ::testing::internal::GetCapturedStderr();
  const auto first = log.find("overrides the autocast scope");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("overrides the autocast scope", first + 1), std::string::npos) << log;
  // The configuration says nothing: the scope holds.
  EXPECT_EQ(seen("", at::kBFloat16), at::kBFloat16);
}

TEST(Precision, CastsInsideTheModelComeLast) {
  auto run = make(nullptr, 0, kAutocast);
  at::ScalarType inner = at::kDouble, lowered = at::kDouble;
  run.engine->backward(run.engine->forward([&] {
    const auto h = run.net->first(input(0).to(at::kDouble).to(at::kFloat));
    lowered = h.scalar_type();
    at::Tensor wide;
    {
      const AutocastScope off(at::kBFloat16, false);
      wide = torch::linear(h.to(at::kFloat), run.net->second->weight);
      inner = wide.scalar_type();
    }
    return wide.sum();
  }));
  run.engine->step();
  EXPECT_EQ(lowered, at::kBFloat16);
  EXPECT_EQ(inner, at::kFloat);
}

TEST(Precision, SectionsThatContradictAreRefused) {
  for (const char* section : {"fp16", "bf16"}) {
    const auto result = check_config(
        R"({"train_batch_size": 1, "torch_autocast": {"enabled": true}, ")" + std::string(section) + R"(": {"enabled": true}})", 1);
    ASSERT_EQ(result.issues.size(), 1u);
    EXPECT_EQ(result.issues[0].path, "torch_autocast.enabled");
    EXPECT_EQ(result.issues[0].kind, ConfigIssue::Kind::kConflict);
  }
}

// Every pair of types, at every stage, in every precision: values that fit all of them come through exactly (known fault A39: parameters larger than a
// bucket with another type on the wire).
TEST(GradientTypes, EveryPairKeepsWhatFits) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* precision : {"", R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true, "loss_scale": 2})"}) {
      for (const char* accumulation : {"", "fp32", "bf16", "fp16"}) {
        for (const char* wire : {"", "fp32", "bf16", "fp16"}) {
          std::string more = precision;
          if (*accumulation) more += R"(, "data_types": {"grad_accum_dtype": ")" + std::string(accumulation) + "\"}";
          if (*wire) more += R"(, "communication_data_type": ")" + std::string(wire) + "\"";
          run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
            auto run = one_weight(communicator, stage, 2, more);
            for (const double gradient : {2.0, 4.0}) {
              run.backward(gradient * (communicator->rank() + 1));
              run.engine->step();
            }
            EXPECT_TRUE(torch::equal(run.weight(), torch::full({3}, -4.5))) << "stage " << stage << more << run.weight();
          });
        }
      }
    }
  }
}

// The keys do something: sums and messages are rounded where they say, and nowhere else.
TEST(GradientTypes, RoundWhereTheyAreAskedTo) {
  const auto moved = [](int stage, const std::string& more) {
    float result = 0;
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto run = one_weight(communicator, stage, 4, more);
      for (int micro = 0; micro < 4; ++micro) {
        run.backward(micro == 0 ? 4.0 : 4.0 / 512);
        run.engine->step();
      }
      const float value = -run.weight()[0].item<float>();
      if (communicator->rank() == 0) result = value;
    });
    return result;
  };
  constexpr float kExact = 1 + 3.0f / 512;
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(moved(stage, ""), kExact);
    EXPECT_EQ(moved(stage, R"(, "bf16": {"enabled": true})"), kExact) << "accumulates in fp32";
    EXPECT_EQ(moved(stage, R"(, "data_types": {"grad_accum_dtype": "fp32"}, "bf16": {"enabled": true})"), kExact);
    // Stages 2 and 3 add micro batches up in fp32, after the exchange.
    EXPECT_EQ(moved(stage, R"(, "data_types": {"grad_accum_dtype": "bf16"}, "bf16": {"enabled": true})"), stage < 2 ? 1.0f : kExact);
    // 1 + 3/512 rounds up to 1 + 1/128.
    EXPECT_EQ(moved(stage, R"(, "communication_data_type": "bf16")"), stage < 2 ? 1 + 1.0f / 128 : kExact);
  }
}

}  // namespace
}  // namespace deepspeed
