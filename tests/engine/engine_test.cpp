// The engine against a plain single-process loop, over stages, world sizes and awkward parameters.
#include "deepspeed/engine.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "engine/engine_impl.h"
#include "engine/small_models.h"

namespace deepspeed {
namespace {

using testing::config_json;
using testing::OddNet;
using testing::rows;
using testing::RunSettings;
using testing::TiedNet;

constexpr int kChunks = 12;  // micro batches of a step over all ranks
constexpr int kSteps = 4;

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights;
};

Result plain_run() {
  OddNet net;
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  Result result;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double loss_sum = 0;
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      auto loss = net.forward(rows(step, chunk)) / kChunks;
      loss.backward();
      loss_sum += loss.item<double>();
    }
    double squares = 0;
    for (auto& p : net.parameters()) {
      if (!p.grad().defined()) p.mutable_grad() = torch::zeros_like(p);  // unused counts as zero: decay still applies
      squares += p.grad().pow(2).sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    const double factor = std::min(1.0, 0.5 / (norm + 1e-6));
    for (auto& p : net.parameters()) p.grad().mul_(factor);
    optimizer.step();
    result.losses.push_back(loss_sum);
    result.norms.push_back(norm);
  }
  for (const auto& item : net.named_parameters()) result.weights[item.key()] = item.value().detach().clone();
  return result;
}

Result engine_run(const RunSettings& settings) {
  Result result;
  std::mutex mutex;
  const int accumulation = kChunks / settings.world;
  RunSettings adjusted = settings;
  adjusted.accumulation = accumulation;
  run_ranks_as_threads(settings.world,
                       [&](std::shared_ptr<Communicator> communicator) {
                         std::shared_ptr<OddNet> net;
                         {
                           static std::mutex construction;  // the global generator seeds the weights
                           std::lock_guard lock(construction);
                           net = std::make_shared<OddNet>();
                         }
                         EngineOptions options;
                         options.config_json = config_json(adjusted);
                         options.communicator = communicator;
                         options.device = "cpu";
                         options.share_memory = settings.share_memory;
                         auto engine = initialize(net, options);
                         std::vector<double> losses, norms;
                         for (int step = 0; step < kSteps; ++step) {
                           double loss_sum = 0;
                           for (int micro = 0; micro < accumulation; ++micro) {
                             auto loss = net->forward(rows(step, micro * settings.world + communicator->rank()));
                             loss_sum += loss.item<double>();
                             engine->backward(loss);
                             engine->step();
                           }
                           auto total = torch::full({1}, loss_sum, torch::kDouble);
                           communicator->all_reduce(total, ReduceOp::kSum, "loss")->wait();
                           losses.push_back(total.item<double>() / kChunks);
                           norms.push_back(engine->get_global_grad_norm().value());
                         }
                         auto weights = engine->full_parameters();
                         if (communicator->rank() == 0) {
                           std::lock_guard lock(mutex);
                           result = {losses, norms, weights};
                         }
                       },
                       {.backend = settings.backend, .timeout = {}, .ranks_per_host = settings.ranks_per_host});
  return result;
}

class StagesAndWorlds : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(StagesAndWorlds, EqualThePlainLoop) {
  static const Result expected = plain_run();
  const auto [stage, world, share_memory] = GetParam();
  const Result got = engine_run({.stage = stage, .world = world, .share_memory = share_memory});
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(got.losses[step], expected.losses[step], 2e-6) << "step " << step;
    EXPECT_NEAR(got.norms[step], expected.norms[step], 1e-5) << "step " << step;
  }
  ASSERT_EQ(got.weights.size(), expected.weights.size());
  for (const auto& [name, value] : expected.weights) {
    ASSERT_TRUE(got.weights.count(name)) << name;
    ASSERT_EQ(got.weights.at(name).sizes(), value.sizes()) << name;
    EXPECT_TRUE(torch::allclose(got.weights.at(name), value, 1e-4, 1e-5)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, StagesAndWorlds,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 2, 3, 4), ::testing::Bool()));

// One copy for all ranks, a copy each over shared memory, and Gloo: the arithmetic is the same to the last bit.
TEST(Engine, SharingAndBackEndsChangeNoBit) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (int world = 1; world <= 4; ++world) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", world " + std::to_string(world));
      const Result gloo = engine_run({.stage = stage, .world = world, .backend = "gloo"});
      for (const bool share_memory : {true, false}) {
        const Result other = engine_run({.stage = stage, .world = world, .share_memory = share_memory});
        EXPECT_EQ(other.losses, gloo.losses);
        EXPECT_EQ(other.norms, gloo.norms);
        for (const auto& [name, value] : gloo.weights) EXPECT_TRUE(torch::equal(value, other.weights.at(name))) << name;
      }
    }
  }
}

// Sums inside a host and then over hosts: another order than one flat group's, the same one in every run.
TEST(Engine, TrainsOverSeveralHosts) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE("stage " + std::to_string(stage));
    const RunSettings hosts{.stage = stage, .world = 4, .backend = "shm+gloo", .ranks_per_host = 2};
    const Result flat = engine_run({.stage = stage, .world = 4, .backend = "gloo"}), first = engine_run(hosts), second = engine_run(hosts);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.norms, second.norms);
    for (int step = 0; step < kSteps; ++step) EXPECT_NEAR(first.norms[step], flat.norms[step], 1e-6);
    for (const auto& [name, value] : flat.weights) {
      EXPECT_TRUE(torch::equal(first.weights.at(name), second.weights.at(name))) << name;
      EXPECT_TRUE(torch::allclose(value, first.weights.at(name), 1e-5, 1e-7)) << name;
    }
  }
}

// Gradients and losses have the same bits; norms are sums over differently cut units and may differ in the last bits of a double, weights
// with them in the last bit of a float.
void expect_equal_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.losses[0], b.losses[0]);
  for (int step = 0; step < kSteps; ++step) EXPECT_NEAR(a.norms[step], b.norms[step], 1e-14);
  for (const auto& [name, value] : a.weights) EXPECT_TRUE(torch::allclose(value, b.weights.at(name), 2e-7, 1e-9)) << name;
}

TEST(Engine, StagesAgreeToTheLastBits) {
  // Stages 2 and 3 add up micro batches after the reduction, 0 and 1 before; with one micro batch per rank all four are one sum.
  const Result stage2 = engine_run({.stage = 2, .world = 4});
  expect_equal_bits(stage2, engine_run({.stage = 3, .world = 4}));
  const Result stage0 = engine_run({.stage = 0, .world = 4});
  expect_equal_bits(stage0, engine_run({.stage = 1, .world = 4}));
}

TEST(Engine, TuningKnobsChangeNoResult) {
  const Result base = engine_run({.stage = 3, .world = 2});
  for (const char* knob : {", \"overlap_comm\": false", ", \"stage3_prefetch_bucket_size\": 0", ", \"stage3_max_live_parameters\": 0",
                           ", \"stage3_max_live_parameters\": 150", ", \"stage3_max_reuse_distance\": 0", ", \"reduce_bucket_size\": 8",
                           ", \"reduce_scatter\": false", ", \"allgather_partitions\": false"}) {
    SCOPED_TRACE(knob);
    // Some change the units, some the order in which micro batches are added up: equal up to rounding.
    for (const bool share_memory : {true, false}) {
      const Result other = engine_run({.stage = 3, .world = 2, .zero_more = knob, .share_memory = share_memory});
      for (int step = 0; step < kSteps; ++step) EXPECT_NEAR(other.norms[step], base.norms[step], 1e-6);
      for (const auto& [name, value] : base.weights) EXPECT_TRUE(torch::allclose(value, other.weights.at(name), 1e-5, 1e-7)) << name;
    }
  }
}

TEST(Engine, Stage3ReleasesParametersBetweenSteps) {
  run_ranks_as_threads(2, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear net(64, 64);
    EngineOptions options;
    options.config_json = config_json({.stage = 3});
    options.communicator = communicator;
    options.share_memory = false;
    auto engine = initialize(net.ptr(), options);
    EXPECT_EQ(net->weight.storage().data(), nullptr);
    engine->backward(net(torch::ones({2, 64})).sum());
    engine->step();
    EXPECT_EQ(net->weight.storage().data(), nullptr);
    EXPECT_EQ(net->weight.sizes(), (std::vector<int64_t>{64, 64}));
    {
      auto whole = engine->gathered_parameters({net->weight});
      EXPECT_NE(net->weight.storage().data(), nullptr);
    }
    EXPECT_EQ(net->weight.storage().data(), nullptr);
  });
}

at::Tensor tied_ids(int step, int rank) { return (torch::arange(8).view({2, 4}) * 3 + step * 5 + rank * 7).remainder(13); }

// One process, the rows of both ranks, each tensor once in the optimizer.
std::vector<double> plain_tied_run(int steps) {
  TiedNet net;
  std::vector<torch::Tensor> unique;
  for (const auto& p : net.parameters()) {
    if (std::none_of(unique.begin(), unique.end(), [&](const auto& q) { return q.is_same(p); })) unique.push_back(p);
  }
  torch::optim::AdamW optimizer(unique, torch::optim::AdamWOptions(0.01).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    double sum = 0, squares = 0;
    for (int rank = 0; rank < 2; ++rank) {
      auto loss = net.forward(tied_ids(step, rank), step % 2 == 0) / 2;
      loss.backward();
      sum += loss.item<double>();
    }
    losses.push_back(sum);
    for (auto& p : unique) {
      if (!p.grad().defined()) p.mutable_grad() = torch::zeros_like(p);
      squares += p.grad().pow(2).sum().item<double>();
    }
    for (auto& p : unique) p.grad().mul_(std::min(1.0, 0.5 / (std::sqrt(squares) + 1e-6)));
    optimizer.step();
  }
  return losses;
}

TEST(Engine, TiedReusedUnusedAndChangingPaths) {
  constexpr int kTiedSteps = 6;
  const std::vector<double> expected = plain_tied_run(kTiedSteps);
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      static std::mutex construction;
      std::shared_ptr<TiedNet> model;
      {
        std::lock_guard lock(construction);
        model = std::make_shared<TiedNet>();
      }
      EngineOptions options;
      options.config_json = config_json({.stage = stage});
      options.communicator = communicator;
      auto engine = initialize(model, options);
      for (int step = 0; step < kTiedSteps; ++step) {
        auto loss = model->forward(tied_ids(step, communicator->rank()), step % 2 == 0);
        auto total = torch::full({1}, loss.item<double>() / 2, torch::kDouble);
        engine->backward(loss);
        engine->step();
        communicator->all_reduce(total, ReduceOp::kSum, "loss")->wait();
        EXPECT_NEAR(total.item<double>(), expected[static_cast<size_t>(step)], 1e-5) << step;
        // Evaluation between steps, under no_grad and with another shape.
        torch::NoGradGuard no_grad;
        engine->eval();
        EXPECT_TRUE(std::isfinite(model->forward(torch::zeros({1, 3}, torch::kLong), true).item<double>()));
        engine->train();
      }
      EXPECT_TRUE(model->table.is_same(model->head));
    });
  }
}

// What the limits of stage 3 promise: gathers ahead of their use or not, and no more elements gathered than allowed.
TEST(Engine, Stage3LimitsGovernGathering) {
  const auto statistics_with = [](const std::string& limits) {
    zero::ResidencyStatistics result;
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      torch::nn::Sequential net;
      for (int i = 0; i < 4; ++i) net->push_back(torch::nn::Linear(32, 32));
      EngineOptions options;
      options.config_json = config_json({.stage = 3, .zero_more = limits});
      options.communicator = communicator;
      options.share_memory = false;
      auto engine = initialize(net, options);
      for (int step = 0; step < 3; ++step) {
        engine->backward(net->forward(torch::ones({2, 32})).pow(2).mean());
        engine->step();
      }
      if (communicator->rank() == 0) result = *engine->impl().residency_statistics();
    });
    return result;
  };
  constexpr int64_t kUnit = 2 * 544;  // elements of a layer, 1056, as two shards of a multiple of 32
  const auto free = statistics_with("");
  EXPECT_EQ(free.gathers, 4 * 3);  // once per layer and step
  EXPECT_GT(free.prefetched, 0);
  EXPECT_EQ(free.diverged, 0);
  EXPECT_EQ(free.peak_live, 4 * kUnit);
  EXPECT_EQ(statistics_with(", \"stage3_prefetch_bucket_size\": 0").prefetched, 0);
  const auto tight = statistics_with(", \"stage3_max_live_parameters\": " + std::to_string(2 * kUnit));
  EXPECT_LE(tight.peak_live, 2 * kUnit);
  EXPECT_GT(tight.gathers, free.gathers);
  EXPECT_GT(statistics_with(", \"stage3_max_reuse_distance\": 0").gathers, free.gathers);
}

// Ranks that use other parameters are told so, by name, before anything is updated.
TEST(Engine, DivergingRanksGetANamedError) {
  std::string message;
  try {
    run_ranks_as_threads(2,
                         [&](std::shared_ptr<Communicator> communicator) {
                           torch::nn::Linear first(32, 32), second(32, 32);
                           torch::nn::Sequential net(first, second);
                           EngineOptions options;
                           options.config_json = config_json({.stage = 3});
                           options.communicator = communicator;
                           options.share_memory = false;
                           auto engine = initialize(net, options);
                           engine->backward((communicator->rank() == 0 ? first : second)(torch::ones({2, 32})).sum());
                         },
                         {.timeout = std::chrono::seconds(20)});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCommMismatch) << error.what();
    message = error.what();
  }
  EXPECT_NE(message.find("0.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("1.weight"), std::string::npos) << message;
}

// With one copy for all ranks nobody gathers: ranks may use different parts of the model in one step, as in stages 0 to 2.
TEST(Engine, RanksThatShareMayUseDifferentParameters) {
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear first(32, 32), second(32, 32);
    torch::nn::Sequential net(first, second);
    EngineOptions options;
    options.config_json = config_json({.stage = 3});
    options.communicator = communicator;
    auto engine = initialize(net, options);
    const auto before = engine->full_parameters(true);
    engine->backward((communicator->rank() == 0 ? first : second)(torch::ones({2, 32})).sum());
    engine->step();
    for (const auto& [name, value] : engine->full_parameters(true)) EXPECT_FALSE(torch::equal(value, before.at(name))) << name;
  });
}

// While the engine lives the ranks have one copy; after it each goes its own way.
TEST(Engine, SharedParametersBecomePrivateWhenTheEngineEnds) {
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear net(16, 16);
    {
      EngineOptions options;
      options.config_json = config_json({.stage = 1});
      options.communicator = communicator;
      auto engine = initialize(net.ptr(), options);
      engine->backward(net(torch::ones({2, 16})).sum());
      engine->step();
    }
    torch::NoGradGuard no_grad;
    communicator->barrier("both engines have ended");
    const auto before = net->weight.clone();
    communicator->barrier("read");
    net->weight.add_(communicator->rank() + 1);
    communicator->barrier("written");
    EXPECT_TRUE(torch::equal(net->weight, before + (communicator->rank() + 1)));
  });
}

TEST(Engine, WritesInsideGatheredParametersAreKept) {
  for (const bool by_rank0 : {false, true}) {
    run_ranks_as_threads(3, [&](std::shared_ptr<Communicator> communicator) {
      torch::nn::Linear net(6, 5);
      EngineOptions options;
      options.config_json = config_json({.stage = 3, .more = by_rank0 ? ", \"bf16\": {\"enabled\": true}" : ""});
      options.communicator = communicator;
      auto engine = initialize(net.ptr(), options);
      {
        auto whole = engine->gathered_parameters({net->weight}, by_rank0 ? std::optional<int>(0) : std::nullopt);
        torch::NoGradGuard no_grad;
        if (!by_rank0 || communicator->rank() == 0) net->weight.fill_(0.25);
      }
      const auto values = engine->full_parameters(true);
      EXPECT_TRUE(torch::equal(values.at("weight"), torch::full({5, 6}, 0.25)));
    });
  }
}

TEST(Engine, NonFiniteGradientOnOneRankSkipsTheStepOnAll) {
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      torch::nn::Linear net(4, 3);
      EngineOptions options;
      options.config_json = config_json({.stage = stage});
      options.communicator = communicator;
      auto engine = initialize(net.ptr(), options);
      const auto before = engine->full_parameters(true);
      auto x = torch::ones({2, 4});
      if (communicator->rank() == 1) x[0][0] = INFINITY;
      engine->backward(net(x).sum());
      engine->step();
      EXPECT_FALSE(engine->was_step_applied());
      EXPECT_EQ(engine->skipped_steps(), 1);
      const auto after = engine->full_parameters(true);
      for (const auto& [name, value] : before) EXPECT_TRUE(torch::equal(value, after.at(name))) << name;
      engine->backward(net(torch::ones({2, 4})).sum());
      engine->step();
      EXPECT_TRUE(engine->was_step_applied());
    });
  }
}

TEST(Engine, TwoEnginesInOneProcess) {
  run_ranks_as_threads(2, [](std::shared_ptr<Communicator> communicator) {
    torch::nn::Linear first(8, 8), second(8, 8);
    EngineOptions options;
    options.config_json = config_json({.stage = 3});
    options.communicator = communicator->duplicate("first");
    auto a = initialize(first, options);
    options.communicator = communicator->duplicate("second");
    auto b = initialize(second.ptr(), options);
    auto x = torch::randn({2, 8});
    auto loss_a = first(x).pow(2).mean();
    auto loss_b = second(x).pow(2).mean();
    a->backward(loss_a);
    a->step();
    b->backward(loss_b);
    b->step();
    b.reset();
    a->backward(first(x).pow(2).mean());
    a->step();
    EXPECT_EQ(a->global_steps(), 2);
  });
}

// A TorchScript module, from source text: its parameters are gathered and trained like any other's.
TEST(Engine, TrainsTorchScriptModules) {
  std::vector<double> first;
  for (int stage = 0; stage <= 3; ++stage) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      torch::jit::Module module("net");
      {
        static std::mutex construction;
        std::lock_guard lock(construction);
        torch::manual_seed(3);
        module.register_parameter("weight", (torch::randn({6, 5}) * 0.3).set_requires_grad(true), false);
        module.register_parameter("bias", torch::zeros({6}).set_requires_grad(true), false);
      }
      module.define("def forward(self, x):\n    h = torch.tanh(x @ self.weight.t() + self.bias)\n    return (h * h).mean()\n");
      EngineOptions options;
      options.config_json = config_json({.stage = stage});
      options.communicator = communicator;
      auto engine = initialize(module, options);
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        auto loss = module.forward({rows(step, communicator->rank())}).toTensor();
        losses.push_back(loss.item<double>());
        engine->backward(loss);
        engine->step();
      }
      if (communicator->rank() != 0) return;
      if (stage == 0) first = losses;
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], first[i], 1e-6) << "stage " << stage;
    });
  }
}

TEST(Engine, MisuseIsNamed) {
  torch::nn::Linear net(4, 3);
  EngineOptions options;
  options.config_json = config_json({});
  auto engine = initialize(net.ptr(), options);
  const auto message_of = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message_of([&] { engine->step(); }).find("without a backward()"), std::string::npos);
  EXPECT_NE(message_of([&] { engine->backward(torch::ones({2})); }).find("2 elements"), std::string::npos);
  EXPECT_NE(message_of([&] { engine->backward(torch::ones({})); }).find("no trained parameter"), std::string::npos);
  EXPECT_NE(message_of([&] { net(torch::ones({1, 4})).sum().backward(); }).find("engine->backward"), std::string::npos);
}

}  // namespace
}  // namespace deepspeed
