// Every optimizer through the engine, in every stage, against plain loops over whole tensors.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include <mutex>

#include "engine/small_models.h"
#include "kernels/lamb.h"
#include "kernels/lion.h"

namespace deepspeed {
namespace {

using testing::OddNet;
using testing::rows;

constexpr int kSteps = 5;

std::shared_ptr<OddNet> make_net() {
  static std::mutex construction;  // the global generator seeds the weights
  std::lock_guard lock(construction);
  return std::make_shared<OddNet>();
}

using Weights = std::map<std::string, torch::Tensor>;
using PlainStep = std::function<void(const std::string& name, torch::Tensor& parameter, int step)>;

Weights weights_of(const OddNet& net) {
  Weights weights;
  for (const auto& item : net.named_parameters()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

// Gradients as the engine has them: zero where a parameter was not used.
void backward(OddNet& net, int step) {
  net.zero_grad();
  net.forward(rows(step, 0)).backward();
  for (auto& parameter : net.parameters()) {
    if (!parameter.grad().defined()) parameter.mutable_grad() = torch::zeros_like(parameter);
  }
}

template <typename Optimizer, typename Options>
Weights torch_run(const Options& options) {
  auto net = make_net();
  Optimizer optimizer(net->parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    backward(*net, step);
    optimizer.step();
  }
  return weights_of(*net);
}

Weights plain_run(const PlainStep& plain) {
  auto net = make_net();
  for (int step = 0; step < kSteps; ++step) {
    backward(*net, step);
    torch::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) plain(item.key(), item.value(), step + 1);
  }
  return weights_of(*net);
}

Weights engine_run(const std::string& optimizer, int stage, int world) {
  Weights weights;
  run_ranks_as_threads(world, [&](std::shared_ptr<Communicator> communicator) {
    auto net = make_net();
    EngineOptions options;
    options.config_json = R"({"train_micro_batch_size_per_gpu": 2, "optimizer": )" + optimizer + R"(, "zero_optimization": {"stage": )" +
                          std::to_string(stage) + R"(, "stage3_param_persistence_threshold": 8}})";
    options.communicator = communicator;
    options.device = "cpu";
    auto engine = initialize(net, options);
    for (int step = 0; step < kSteps; ++step) {
      engine->backward(net->forward(rows(step, 0)));
      engine->step();
    }
    auto mine = engine->full_parameters();
    if (communicator->rank() == 0) weights = std::move(mine);
  });
  return weights;
}

void expect_everywhere(const std::string& optimizer, const Weights& expected) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int world : {1, 2, 3}) {
      const auto got = engine_run(optimizer, stage, world);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, value] : expected) {
        EXPECT_TRUE(torch::allclose(got.at(name), value, 1e-5, 1e-6))
            << optimizer << " stage " << stage << " world " << world << " " << name;
      }
    }
  }
}

TEST(Optimizers, SgdIsTorchs) {
  expect_everywhere(R"({"type": "SGD", "params": {"lr": 0.1}})", torch_run<torch::optim::SGD>(torch::optim::SGDOptions(0.1)));
  expect_everywhere(R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "nesterov": true, "weight_decay": 0.01}})",
                    torch_run<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01)));
  expect_everywhere(R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.8, "dampening": 0.3}})",
                    torch_run<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.8).dampening(0.3)));
}

TEST(Optimizers, AdagradIsTorchs) {
  expect_everywhere(
      R"({"type": "Adagrad", "params": {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.1}})",
      torch_run<torch::optim::Adagrad>(
          torch::optim::AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.01).initial_accumulator_value(0.1).eps(1e-10)));
}

TEST(Optimizers, LionFollowsItsRule) {
  std::map<std::string, torch::Tensor> moments;
  const auto expected = plain_run([&](const std::string& name, torch::Tensor& p, int) {
    auto& moment = moments.try_emplace(name, torch::zeros_like(p)).first->second;
    kernels::lion_reference(p.data_ptr<float>(), p.grad().data_ptr<float>(), moment.data_ptr<float>(), static_cast<size_t>(p.numel()),
                            {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.1});
  });
  expect_everywhere(R"({"type": "Lion", "params": {"lr": 0.01, "weight_decay": 0.1}})", expected);
}

TEST(Optimizers, LambTakesItsNormsOverWholeParameters) {
  std::map<std::string, std::pair<torch::Tensor, torch::Tensor>> moments;
  const auto expected = plain_run([&](const std::string& name, torch::Tensor& p, int step) {
    auto& [m, v] = moments.try_emplace(name, torch::zeros_like(p), torch::zeros_like(p)).first->second;
    kernels::lamb_reference(p.data_ptr<float>(), p.grad().data_ptr<float>(), m.data_ptr<float>(), v.data_ptr<float>(),
                            static_cast<size_t>(p.numel()), {.lr = 0.05, .weight_decay = 0.1, .step = step});
  });
  expect_everywhere(R"({"type": "Lamb", "params": {"lr": 0.05, "weight_decay": 0.1}})", expected);
}

TEST(Optimizers, MomentumIsWhatTheOptimizerHas) {
  const auto momentum = [](const std::string& optimizer) {
    std::vector<double> values;
    run_ranks_as_threads(1, [&](std::shared_ptr<Communicator> communicator) {
      EngineOptions options;
      options.config_json = R"({"train_micro_batch_size_per_gpu": 2, "optimizer": )" + optimizer + "}";
      options.communicator = communicator;
      values = initialize(make_net(), options)->get_mom().at(0);
    });
    return values;
  };
  EXPECT_EQ(momentum(R"({"type": "Lion"})"), (std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(momentum(R"({"type": "SGD", "params": {"momentum": 0.5}})"), std::vector<double>{0.5});
  EXPECT_TRUE(momentum(R"({"type": "Adagrad"})").empty());
}

}  // namespace
}  // namespace deepspeed
