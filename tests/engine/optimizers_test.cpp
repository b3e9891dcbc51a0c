// Every optimizer through the engine, in every stage, against plain loops over whole tensors.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include <mutex>

#include "engine/engine_impl.h"
#include "engine/small_models.h"
#include "kernels/adam.h"
#include "kernels/lamb.h"
#include "kernels/lion.h"
#include "optim/flat_muon.h"
#include "optim/orthogonal.h"

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

void expect_everywhere(const std::string& optimizer, const Weights& expected, double absolute = 1e-6,
                       const std::vector<int>& stages = {0, 1, 2, 3}) {
  for (const int stage : stages) {
    for (const int world : {1, 2, 3}) {
      const auto got = engine_run(optimizer, stage, world);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, value] : expected) {
        EXPECT_TRUE(torch::allclose(got.at(name), value, 1e-5, absolute))
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

TEST(Optimizers, AmsgradIsTorchs) {
  expect_everywhere(
      R"({"type": "Adam", "params": {"torch_adam": true, "adam_w_mode": false, "amsgrad": true, "lr": 0.01, "weight_decay": 0.1}})",
      torch_run<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.1)));
  expect_everywhere(R"({"type": "AdamW", "params": {"torch_adam": true, "amsgrad": true, "lr": 0.01, "weight_decay": 0.1}})",
                    torch_run<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true).weight_decay(0.1)));
}

TEST(Optimizers, MaximizeClimbs) {
  const auto expected = plain_run([&](const std::string&, torch::Tensor& p, int) { p.add_(p.grad() - 0.1 * p, 0.01); });
  expect_everywhere(R"({"type": "SGD", "params": {"lr": 0.01, "weight_decay": 0.1, "maximize": true}})", expected);
}

TEST(Orthogonal, SingularValuesComeNearOneAndVectorsStay) {
  torch::manual_seed(3);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{24, 40}, {40, 24}, {1, 9}, {3, 24, 40}}) {
    const auto matrix = torch::randn(shape);
    const double scale = std::sqrt(std::max(1.0, static_cast<double>(shape[shape.size() - 2]) / static_cast<double>(shape.back())));
    const auto result = optim::orthogonalised(matrix) / scale;
    ASSERT_EQ(result.sizes(), matrix.sizes());
    const auto values = std::get<1>(torch::svd(result));
    EXPECT_LT(values.max().item<double>(), 1.3);
    EXPECT_GT(values.median().item<double>(), 0.6);
    const auto [u, s, v] = torch::svd(matrix);
    // What it makes in the matrix's own singular vectors is diagonal.
    const auto inside = u.mT().matmul(result).matmul(v);
    EXPECT_LT((inside - torch::diag_embed(inside.diagonal(0, -2, -1))).abs().max().item<double>(), 0.05);
  }
  EXPECT_EQ(optim::orthogonalised(torch::zeros({5, 0})).numel(), 0);
  EXPECT_EQ(optim::orthogonalised(torch::zeros({5, 4})).abs().max().item<double>(), 0.0);
  EXPECT_THROW(optim::orthogonalised(torch::randn({5})), Error);
}

// Matrices cut over ranks included: at world 2 and 3 no shard ends with a parameter of OddNet. Products are rounded to bfloat16, so a last digit of a
// gradient may show in a whole direction.
TEST(Optimizers, MuonTurnsWholeMatricesAndLeavesTheRestToAdam) {
  const double lr = 0.02, adam_lr = 0.003, decay = 0.1;
  std::map<std::string, std::pair<torch::Tensor, torch::Tensor>> moments;
  const auto expected = plain_run([&](const std::string& name, torch::Tensor& p, int step) {
    auto& [m, v] = moments.try_emplace(name, torch::zeros_like(p), torch::zeros_like(p)).first->second;
    if (p.dim() < 2) {
      kernels::adam_reference(p.data_ptr<float>(), p.grad().data_ptr<float>(), m.data_ptr<float>(), v.data_ptr<float>(),
                              static_cast<size_t>(p.numel()),
                              {.lr = adam_lr, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-10, .weight_decay = decay, .step = step});
      return;
    }
    m.lerp_(p.grad(), 0.05);
    p.sub_(optim::orthogonalised(p.grad().lerp(m, 0.95)) + decay * p, lr);
  });
  expect_everywhere(R"({"type": "Muon", "params": {"lr": 0.02, "adam_lr": 0.003, "weight_decay": 0.1}})", expected, 3e-4, {1, 2, 3});
}

// As DeepSpeed has it there (docs/differences.md).
TEST(Optimizers, MuonInStageZeroTakesPlainSteps) {
  std::map<std::string, std::pair<torch::Tensor, torch::Tensor>> moments;
  const auto expected = plain_run([&](const std::string& name, torch::Tensor& p, int step) {
    auto& [m, v] = moments.try_emplace(name, torch::zeros_like(p), torch::zeros_like(p)).first->second;
    if (p.dim() >= 2) {
      p.sub_(p.grad() + 0.1 * p, 0.02);
      return;
    }
    kernels::adam_reference(p.data_ptr<float>(), p.grad().data_ptr<float>(), m.data_ptr<float>(), v.data_ptr<float>(),
                            static_cast<size_t>(p.numel()),
                            {.lr = 0.003, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-10, .weight_decay = 0.1, .step = step});
  });
  expect_everywhere(R"({"type": "Muon", "params": {"lr": 0.02, "adam_lr": 0.003, "weight_decay": 0.1}})", expected, 1e-6, {0});
}

TEST(Optimizers, MuonChoosesByShapeAndName) {
  EXPECT_TRUE(optim::takes_matrix_rule("model.layers.0.mlp.up_proj.weight", {8, 4}));
  EXPECT_FALSE(optim::takes_matrix_rule("model.layers.0.norm.weight", {8}));
  EXPECT_FALSE(optim::takes_matrix_rule("model.embed_tokens.weight", {8, 4}));
  EXPECT_FALSE(optim::takes_matrix_rule("model.Embedding.weight", {8, 4}));
  EXPECT_FALSE(optim::takes_matrix_rule("lm_head.weight", {8, 4}));
}

// A step with a gradient that is not finite must leave the momentum alone too, which is mixed before the norm of directions is known.
TEST(Optimizers, MuonSkipsAStepThatIsNotFinite) {
  for (const int stage : {0, 2}) {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
      auto net = make_net();
      EngineOptions options;
      options.config_json = R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Muon"}, "zero_optimization": {"stage": )" +
                            std::to_string(stage) + "}}";
      options.communicator = communicator;
      auto engine = initialize(net, options);
      engine->backward(net->forward(rows(0, 0)));
      engine->step();
      const auto before = engine->full_parameters(true);
      std::vector<torch::Tensor> states;
      for (const auto& unit : engine->impl().unit_states()) {
        for (const auto& state : unit.states) states.push_back(state.clone());
      }
      const double bad = communicator->rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
      engine->backward(net->forward(rows(1, 0)) * bad);
      engine->step();
      EXPECT_FALSE(engine->was_step_applied());
      for (const auto& [name, value] : engine->full_parameters(true)) EXPECT_TRUE(torch::equal(value, before.at(name))) << name;
      size_t next = 0;
      for (const auto& unit : engine->impl().unit_states()) {
        for (const auto& state : unit.states) EXPECT_TRUE(torch::equal(state, states.at(next++))) << unit.unit->label();
      }
    });
  }
}

TEST(Optimizers, MuonsMatricesHaveAMomentumAndTheRestTwoMoments) {
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto net = make_net();
    EngineOptions options;
    options.config_json = R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 2}})";
    options.communicator = communicator;
    auto engine = initialize(net, options);
    engine->backward(net->forward(rows(0, 0)));
    engine->step();
    EXPECT_GT(engine->safe_get_full_optimizer_state(net->up[0]->weight, "momentum_buffer").abs().max().item<double>(), 0.0);
    EXPECT_GT(engine->safe_get_full_optimizer_state(net->up[0]->bias, "exp_avg_sq").abs().max().item<double>(), 0.0);
    EXPECT_THROW(engine->safe_get_full_optimizer_state(net->up[0]->weight, "exp_avg_sq"), Error);
  });
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
