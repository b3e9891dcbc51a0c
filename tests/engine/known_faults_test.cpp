// Faults that were reported against other training systems, tried small. Names begin with the entry's number; others stand beside the feature they are
// about (grep for "A23"), and docs/differences.md says which do not apply.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/text.h"
#include "engine/one_weight.h"

namespace deepspeed {
namespace {

using testing::contains;
using testing::error_of;
using testing::one_weight;

torch::Tensor values(std::initializer_list<float> list) { return torch::tensor(std::vector<float>(list)); }

// A module of named parameters of given sizes, all ones, and a loss that gives each the gradient the caller names.
struct Bag : torch::nn::Module {
  explicit Bag(const std::vector<std::vector<int64_t>>& shapes) {
    for (size_t i = 0; i < shapes.size(); ++i) p.push_back(register_parameter(base::str("p", i), torch::ones(shapes[i])));
  }
  // sum over `used` of gradient * (sum of the parameter)
  torch::Tensor loss(const std::map<size_t, double>& used) {
    torch::Tensor sum = torch::zeros({});
    for (const auto& [index, gradient] : used) sum = sum + p[index].to(torch::kFloat).sum() * gradient;
    return sum;
  }
  std::vector<torch::Tensor> p;
};

struct BagRun {
  std::shared_ptr<Bag> net;
  std::unique_ptr<Engine> engine;
  void step(const std::map<size_t, double>& used) {
    engine->backward(net->loss(used));
    engine->step();
  }
  torch::Tensor value(size_t index) { return engine->safe_get_full_fp32_param(net->p[index]); }
};

BagRun bag(std::shared_ptr<Communicator> communicator, int stage, const std::vector<std::vector<int64_t>>& shapes,
           const std::string& more = "", const std::vector<size_t>& frozen = {}, std::vector<ParameterGroup> groups = {},
           const std::string& zero = "") {
  BagRun run;
  run.net = std::make_shared<Bag>(shapes);
  for (const size_t index : frozen) run.net->p[index].requires_grad_(false);
  EngineOptions options;
  options.config_json = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
    "zero_optimization": {"stage": )" +
                        std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0)" + zero + "}" + more + "}";
  options.communicator = std::move(communicator);
  options.groups = std::move(groups);
  options.device = "cpu";
  run.engine = initialize(std::shared_ptr<torch::nn::Module>(run.net), options);
  return run;
}

void at_each_stage(int world, const std::function<void(std::shared_ptr<Communicator>, int)>& body) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE("stage " + std::to_string(stage) + ", world " + std::to_string(world));
    run_ranks_as_threads(world, [&](std::shared_ptr<Communicator> communicator) { body(communicator, stage); });
  }
}

TEST(KnownFaults, A06Bf16GradientsAreNeitherScaledNorKept) {
  at_each_stage(2, [](auto communicator, int stage) {
    auto run = one_weight(communicator, stage, 1, R"(, "bf16": {"enabled": true})");
    for (int step = 1; step <= 2; ++step) {
      run.backward(1);
      run.engine->step();
      EXPECT_TRUE(torch::equal(run.weight(), torch::full({3}, -static_cast<float>(step))));
    }
  });
}

TEST(KnownFaults, A08TheNormIsDividedByTheScaleOfItsOwnStep) {
  at_each_stage(2, [](auto communicator, int stage) {
    auto run = one_weight(communicator, stage, 1, R"(, "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale_window": 1})");
    for (int step = 0; step < 4; ++step) {
      run.backward(values({3, 4, 0}));
      run.engine->step();
      EXPECT_EQ(run.engine->get_global_grad_norm().value(), 5.0);
    }
    EXPECT_GT(run.engine->loss_scale(), 16);
  });
}

TEST(KnownFaults, A11A12A13OneNormAndOneClipFactorForAllRanks) {
  for (int world = 1; world <= 3; ++world) {
    at_each_stage(world, [](auto communicator, int stage) {
      for (const double limit : {1.0, 10.0}) {
        auto run = one_weight(communicator, stage, 1, R"(, "gradient_clipping": )" + std::to_string(limit));
        run.backward(values({3, 4, 0}));
        run.engine->step();
        EXPECT_NEAR(run.engine->get_global_grad_norm().value(), 5.0, 1e-6);
        const auto expected = limit == 1.0 ? values({-0.6f, -0.8f, 0}) : values({-3, -4, 0});
        EXPECT_TRUE(torch::allclose(run.weight(), expected, 1e-6, 1e-6)) << run.weight();
      }
    });
  }
}

TEST(KnownFaults, A19TheAverageDoesNotDependOnWhereItIsDivided) {
  at_each_stage(2, [](auto communicator, int stage) {
    for (const char* reduce_scatter : {"true", "false"}) {
      for (const char* more : {"", R"(, "prescale_gradients": true)", R"(, "gradient_predivide_factor": 4)"}) {
        if (stage == 2 && *reduce_scatter == 't' && *more) continue;  // refused
        auto run = bag(communicator, stage, {{3}}, more, {}, {}, std::string(R"(, "reduce_scatter": )") + reduce_scatter);
        run.step({{0, communicator->rank() == 0 ? 1 : 3}});
        EXPECT_TRUE(torch::equal(run.value(0), torch::full({3}, -1.0))) << more << reduce_scatter;
        EXPECT_NEAR(run.engine->get_global_grad_norm().value(), 2 * std::sqrt(3.0), 1e-6);
      }
    }
  });
}

TEST(KnownFaults, A20AParameterUsedOnOneRankOnly) {
  at_each_stage(2, [](auto communicator, int stage) {
    auto run = bag(communicator, stage, {{3}, {4}, {5}});
    const bool uses = communicator->rank() == 0;
    // CPU ranks of one host share parameters: nobody waits for a gather.
    run.step(uses ? std::map<size_t, double>{{0, 4}, {1, 2}, {2, 6}} : std::map<size_t, double>{{0, 4}, {2, 6}});
    EXPECT_TRUE(torch::equal(run.value(0), torch::full({3}, -3.0)));
    EXPECT_TRUE(torch::equal(run.value(1), torch::zeros({4})));
    EXPECT_TRUE(torch::equal(run.value(2), torch::full({5}, -5.0)));
  });
}

TEST(KnownFaults, A26A27TheScheduleMovesOncePerOptimizerStep) {
  for (int world = 1; world <= 2; ++world) {
    at_each_stage(world, [](auto communicator, int stage) {
      auto run = one_weight(communicator, stage, 4,
                            R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1.0, "warmup_num_steps": 10,
                                "warmup_type": "linear"}})");
      for (int micro = 0; micro < 8; ++micro) {
        run.backward(1);
        run.engine->step();
      }
      EXPECT_NEAR(run.engine->get_lr()[0], 0.1, 1e-12);  // the first of the two steps is that of rate 0
    });
  }
}

// A28, A40: nothing is counted up that is never reset.
TEST(KnownFaults, A28A40EveryStepMakesTheSameCalls) {
  at_each_stage(2, [](auto communicator, int stage) {
    auto run = bag(communicator, stage, std::vector<std::vector<int64_t>>(10, {5}), "", {}, {}, R"(, "reduce_bucket_size": 10)");
    std::map<size_t, double> used;
    for (size_t i = 0; i < 10; ++i) used[i] = 1;
    run.step(used);
    run.step(used);
    const auto before = communicator->calls();
    run.step(used);
    const auto per_step = communicator->calls() - before;
    for (int step = 0; step < 20; ++step) run.step(used);
    EXPECT_EQ(communicator->calls() - before, 21 * per_step);
  });
}

TEST(KnownFaults, A29A30ParametersWithoutElements) {
  for (int world = 1; world <= 2; ++world) {
    at_each_stage(world, [](auto communicator, int stage) {
      for (const char* more : {"", R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true, "loss_scale": 1})"}) {
        auto run = bag(communicator, stage, {{4, 4}, {0, 4}}, more);
        for (int step = 0; step < 2; ++step) run.step({{0, 1}, {1, 1}});
        EXPECT_TRUE(torch::equal(run.value(0), torch::full({4, 4}, -1.0)));
        EXPECT_EQ(run.value(1).sizes(), (std::vector<int64_t>{0, 4}));
        EXPECT_EQ(run.net->p[1].sizes(), (std::vector<int64_t>{0, 4}));
      }
      auto alone = bag(communicator, stage, {{8, 0}});
      alone.step({{0, 1}});
      EXPECT_EQ(alone.value(0).sizes(), (std::vector<int64_t>{8, 0}));
    });
  }
}

TEST(KnownFaults, A31A32A33A34SizesThatNoWorldDivides) {
  for (int world = 1; world <= 4; ++world) {
    at_each_stage(world, [](auto communicator, int stage) {
      auto run = bag(communicator, stage, {{3}, {1}, {5, 3}, {4}});
      run.step({{0, 2}, {1, 3}, {2, 4}, {3, 5}});
      EXPECT_TRUE(torch::allclose(run.value(0), torch::full({3}, -1.0)));
      EXPECT_TRUE(torch::allclose(run.value(1), torch::full({1}, -2.0)));
      EXPECT_TRUE(torch::allclose(run.value(2), torch::full({5, 3}, -3.0)));
      EXPECT_TRUE(torch::allclose(run.value(3), torch::full({4}, -4.0)));
    });
  }
}

TEST(KnownFaults, A36A37GroupsThatAreEmptyOrFrozen) {
  at_each_stage(2, [](auto communicator, int stage) {
    // p0 matches no group's parameters that train: the middle group holds only frozen ones, the first matches nothing.
    std::vector<ParameterGroup> groups(3);
    const std::pair<const char*, double> wanted[] = {{"nothing", 7.0}, {"p0", 5.0}, {"p1", 0.5}};
    for (size_t g = 0; g < 3; ++g) {
      groups[g].match = wanted[g].first;
      groups[g].lr = wanted[g].second;
    }
    auto run = bag(communicator, stage, {{3}, {4}}, "", {0}, groups);
    EXPECT_EQ(run.engine->get_lr(), std::vector<double>{0.5});
    run.step({{0, 1}, {1, 2}});
    EXPECT_TRUE(torch::equal(run.value(0), torch::ones({3})));
    EXPECT_TRUE(torch::equal(run.value(1), torch::zeros({4})));
  });
}

// The norm leaves an unused parameter out, weight decay does not (as in torch's optimizers with a gradient of zero).
TEST(KnownFaults, A41AParameterThatNobodyUses) {
  for (int world = 1; world <= 2; ++world) {
    at_each_stage(world, [](auto communicator, int stage) {
      auto run = bag(communicator, stage, {{3}, {4}}, R"(, "gradient_clipping": 1000)");
      run.step({{0, 2}});
      EXPECT_NEAR(run.engine->get_global_grad_norm().value(), 2 * std::sqrt(3.0), 1e-6);
      EXPECT_TRUE(torch::equal(run.value(1), torch::ones({4})));
    });
  }
}

struct Layers : torch::nn::Module {
  Layers() {
    torch::manual_seed(2);
    f = register_module("f", torch::nn::Linear(4, 4));
    g = register_module("g", torch::nn::Linear(4, 4));
  }
  torch::nn::Linear f{nullptr}, g{nullptr};
};

std::unique_ptr<Engine> sgd_engine(std::shared_ptr<Layers> net, std::shared_ptr<Communicator> communicator, int stage) {
  EngineOptions options;
  options.config_json = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
    "zero_optimization": {"stage": )" +
                        std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 0}})";
  options.communicator = std::move(communicator);
  options.share_memory = false;
  return initialize(std::shared_ptr<torch::nn::Module>(std::move(net)), options);
}

std::shared_ptr<Layers> make_layers() {
  static std::mutex construction;  // the global generator seeds the weights
  std::lock_guard lock(construction);
  return std::make_shared<Layers>();
}

TEST(KnownFaults, A42BiasesTrainAloneOverFrozenWeights) {
  at_each_stage(2, [](auto communicator, int stage) {
    auto net = make_layers();
    for (auto* layer : {&net->f, &net->g}) (*layer)->weight.requires_grad_(false);
    const auto engine = sgd_engine(net, communicator, stage);
    const auto before = engine->full_parameters(true);
    engine->backward(net->f(torch::ones({6, 4})).sum());
    EXPECT_TRUE(torch::equal(engine->safe_get_full_grad(net->f->bias), torch::full({4}, 6.0)));
    EXPECT_TRUE(contains(error_of([&] { engine->safe_get_full_grad(net->f->weight); }), "frozen"));
    engine->step();
    const auto after = engine->full_parameters(true);
    EXPECT_TRUE(torch::equal(after.at("f.bias"), before.at("f.bias") - 6));
    EXPECT_TRUE(torch::equal(after.at("f.weight"), before.at("f.weight")));
  });
}

TEST(KnownFaults, A43FrozenWeightsHaveNoMasters) {
  at_each_stage(1, [](auto communicator, int stage) {
    for (const char* more : {R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true})"}) {
      auto run = bag(communicator, stage, {{100000}, {1000}}, more, {0});
      EXPECT_EQ(run.engine->memory_plan().trainable, 1000);
      EXPECT_LE(run.engine->memory_plan().optimizer_bytes, 4 * 1024);
    }
  });
}

TEST(KnownFaults, A44FrozenWeightsAreSavedAndLoaded) {
  const auto folder = std::filesystem::temp_directory_path() / ("ds_frozen_" + std::to_string(::getpid()));
  std::filesystem::remove_all(folder);
  at_each_stage(2, [&](auto communicator, int stage) {
    const auto path = (folder / std::to_string(stage)).string();
    auto run = bag(communicator, stage, {{3}, {4}}, "", {0});
    run.engine->safe_set_full_fp32_param(run.net->p[0], values({1, 2, 3}));
    run.step({{1, 2}});
    run.engine->save_checkpoint(path);
    auto other = bag(communicator, stage, {{3}, {4}}, "", {0});
    other.engine->load_checkpoint(path);
    EXPECT_TRUE(torch::equal(other.value(0), values({1, 2, 3})));
    EXPECT_TRUE(torch::equal(other.value(1), torch::full({4}, -1.0)));
  });
  std::filesystem::remove_all(folder);
}

TEST(KnownFaults, A46AModuleCalledTwiceIsNotFreedInBetween) {
  auto plain = make_layers();
  auto x = torch::linspace(-1, 1, 8).view({2, 4});
  plain->f(plain->f(x)).pow(2).sum().backward();
  at_each_stage(2, [&](auto communicator, int stage) {
    auto net = make_layers();
    const auto engine = sgd_engine(net, communicator, stage);
    for (int step = 0; step < 2; ++step) {
      engine->backward(net->f(net->f(x)).pow(2).sum());
      if (step == 0) {
        EXPECT_TRUE(torch::allclose(engine->safe_get_full_grad(net->f->weight), plain->f->weight.grad(), 1e-5, 1e-6));
      }
      engine->safe_set_full_grad(net->f->weight, torch::zeros({4, 4}));
      engine->safe_set_full_grad(net->f->bias, torch::zeros({4}));
      engine->step();
    }
  });
}

// What a context without a modifier means: every rank writes the same, and that is kept (A48). Afterwards the parameter is a shard again (A49).
TEST(KnownFaults, A48A49GatheredParametersKeepWritesAndAreFreed) {
  at_each_stage(2, [](auto communicator, int stage) {
    auto net = make_layers();
    const auto engine = sgd_engine(net, communicator, stage);
    const auto before = engine->safe_get_full_fp32_param(net->f->weight);
    {
      torch::NoGradGuard no_grad;
      const auto whole = engine->gathered_parameters({net->f->weight});
      net->f->weight.add_(1);
    }
    EXPECT_TRUE(torch::equal(engine->safe_get_full_fp32_param(net->f->weight), before + 1));
    if (stage == 3) {
      EXPECT_EQ(net->f->weight.storage().data(), nullptr);
    }
    EXPECT_TRUE(contains(error_of([&] { engine->gathered_parameters({net->f->weight}, 2); }), "modifier_rank 2"));
  });
}

TEST(KnownFaults, A103TimersMayBeOnOrOffInFp16) {
  for (const char* scale : {"0", "8"}) {
    for (const char* timers : {"true", "false"}) {
      auto run = one_weight(nullptr, 0, 1,
                            R"(, "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale": )" + std::string(scale) +
                                R"(}, "wall_clock_breakdown": )" + timers);
      run.backward(1);
      run.engine->step();
      EXPECT_TRUE(torch::equal(run.weight(), torch::full({3}, -1.0)));
    }
  }
}

}  // namespace
}  // namespace deepspeed
