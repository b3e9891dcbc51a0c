// Every reference model: logits and loss as the reference computed them.
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "deepspeed/models.h"
#include "deepspeed/safetensors.h"

namespace deepspeed {
namespace {

const std::string kModels = std::string(DEEPSPEED_SOURCE_DIR) + "/tests/golden/models/";

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    directory_ = kModels + GetParam();
    std::ifstream in(directory_ + "/forward.json");
    facts_ = nlohmann::json::parse(in);
    expected_ = load_safetensors(directory_ + "/forward.safetensors");
    model_ = load_model(directory_);
    model_->eval();
  }
  double tolerance(const char* which) const { return facts_["tolerance"][which].get<double>(); }

  std::string directory_;
  nlohmann::json facts_;
  std::map<std::string, at::Tensor> expected_;
  std::shared_ptr<CausalLM> model_;
};

TEST_P(Golden, LogitsAndLossEqualTheReference) {
  const at::Tensor ids = expected_.at("input_ids");
  const at::Tensor logits = model_->logits(ids);
  EXPECT_LE((logits - expected_.at("logits")).abs().max().item<double>(), tolerance("logits_abs"));
  EXPECT_NEAR(model_->loss(ids).item<double>(), facts_["loss"].get<double>(), tolerance("loss_abs"));
  const at::Tensor last = model_->next_logits(ids);
  EXPECT_LE((last - logits.select(1, ids.size(1) - 1)).abs().max().item<double>(), tolerance("logits_abs"));
}

TEST_P(Golden, ParametersHaveTheNamesOfTheFile) {
  int64_t count = 0;
  std::vector<std::string> names;
  for (const auto& item : model_->named_parameters()) {
    count += item.value().numel();
    names.push_back(item.key());
    EXPECT_TRUE(item.value().requires_grad());
  }
  EXPECT_EQ(count, facts_["parameters"].get<int64_t>());
  std::sort(names.begin(), names.end());
  std::vector<std::string> stored;
  for (const auto& [name, tensor] : load_safetensors(directory_ + "/model.safetensors")) stored.push_back(name);
  EXPECT_EQ(names, stored);
}

// Operators of the models meet two types in one call there.
TEST_P(Golden, AutocastStaysCloseToTheReference) {
  const auto ids = expected_.at("input_ids");
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor loss = model_->loss(ids);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  EXPECT_NEAR(loss.item<double>(), facts_["loss"].get<double>(), 0.02);
  loss.backward();
  std::vector<at::Tensor> lowered;
  for (const auto& p : model_->parameters()) lowered.push_back(p.grad().clone());
  model_->zero_grad();
  model_->loss(ids).backward();
  size_t i = 0;
  for (const auto& item : model_->named_parameters()) {
    const auto& exact = item.value().grad();
    EXPECT_LE((lowered[i++] - exact).norm().item<double>(), 0.1 * exact.norm().item<double>() + 1e-3) << item.key();
  }
}

TEST_P(Golden, TheLossIsThatOfTheLogits) {
  const at::Tensor ids = expected_.at("input_ids");
  const int64_t scored = ids.size(1) - 1;
  const at::Tensor chances = model_->logits(ids).narrow(1, 0, scored).to(at::kDouble).log_softmax(-1);
  const double expected = -chances.gather(2, ids.narrow(1, 1, scored).unsqueeze(2)).mean().item<double>();
  EXPECT_NEAR(model_->loss(ids).item<double>(), expected, 2e-6);
}

TEST_P(Golden, WorksInBfloat16) {
  const at::Tensor ids = expected_.at("input_ids");
  model_->to(at::kBFloat16);
  const at::Tensor loss = model_->loss(ids);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_NEAR(loss.item<double>(), facts_["loss"].get<double>(), 2e-2);
  loss.backward();
  for (const auto& item : model_->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_EQ(item.value().grad().scalar_type(), at::kBFloat16);
    EXPECT_TRUE(item.value().grad().isfinite().all().item<bool>()) << item.key();
  }
}

// The gradient along a random direction, against the difference of losses in double precision.
TEST_P(Golden, GradientsAreThoseOfTheLoss) {
  const at::Tensor ids = expected_.at("input_ids");
  model_->loss(ids).backward();
  std::vector<at::Tensor> directions;
  double slope = 0;
  for (const at::Tensor& parameter : model_->parameters()) {
    directions.push_back(at::empty_like(parameter).detach().normal_().to(at::kDouble));
    slope += (parameter.grad().to(at::kDouble) * directions.back()).sum().item<double>();
  }
  model_->to(at::kDouble);
  const at::NoGradGuard no_grad;
  const double step = 1e-5;
  double losses[2];
  for (int side = 0; side < 2; ++side) {
    const auto parameters = model_->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) at::Tensor(parameters[i]).add_(directions[i], side == 0 ? step : -2 * step);
    losses[side] = model_->loss(ids).item<double>();
  }
  EXPECT_NEAR(slope, (losses[0] - losses[1]) / (2 * step), 1e-4 * std::abs(slope) + 1e-4);
}

TEST_P(Golden, ShapesMayChangeFromCallToCall) {
  const int64_t vocab = model_->info().vocab_size;
  for (const auto& [batch, seq] : std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {3, 37}, {2, 5}, {1, 64}}) {
    const at::Tensor ids = at::randint(vocab, {batch, seq}, at::kLong);
    EXPECT_EQ(model_->logits(ids).sizes(), (std::vector<int64_t>{batch, seq, vocab}));
    EXPECT_TRUE(std::isfinite(model_->loss(ids).item<double>()));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden,
                         ::testing::Values("nano-llama", "micro-llama", "tiny-llama", "tiny-llama-tied", "tiny-gpt2", "tiny-qwen2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CausalLM, ParametersFollowTheModuleTree) {
  std::vector<std::string> names;
  for (const auto& item : load_model(kModels + "tiny-qwen2")->named_parameters()) names.push_back(item.key());
  const std::vector<std::string> first = {"model.embed_tokens.weight",
                                          "model.layers.0.self_attn.q_proj.weight",
                                          "model.layers.0.self_attn.q_proj.bias",
                                          "model.layers.0.self_attn.k_proj.weight",
                                          "model.layers.0.self_attn.k_proj.bias",
                                          "model.layers.0.self_attn.v_proj.weight",
                                          "model.layers.0.self_attn.v_proj.bias",
                                          "model.layers.0.self_attn.o_proj.weight",
                                          "model.layers.0.mlp.gate_proj.weight",
                                          "model.layers.0.mlp.up_proj.weight",
                                          "model.layers.0.mlp.down_proj.weight",
                                          "model.layers.0.input_layernorm.weight",
                                          "model.layers.0.post_attention_layernorm.weight",
                                          "model.layers.1.self_attn.q_proj.weight"};
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 14), first);
  EXPECT_EQ(names.back(), "lm_head.weight");
}

TEST(CausalLM, ParametersWithNewStorageAreUsed) {
  const auto model = load_model(kModels + "tiny-gpt2");
  const at::Tensor ids = at::randint(192, {1, 8}, at::kLong);
  const double before = model->loss(ids).item<double>();
  for (at::Tensor& parameter : model->parameters()) parameter.set_data(parameter.detach().clone().zero_());
  EXPECT_NE(model->loss(ids).item<double>(), before);
  EXPECT_NEAR(model->loss(ids).item<double>(), std::log(192.0), 1e-5);
}

TEST(CausalLM, WrongIdsAreErrors) {
  const auto model = load_model(kModels + "tiny-gpt2");
  EXPECT_THROW(model->loss(at::randint(192, {1, 1}, at::kLong)), Error);    // nothing to score
  EXPECT_THROW(model->loss(at::randint(192, {8}, at::kLong)), Error);       // no batch
  EXPECT_THROW(model->loss(at::randint(192, {1, 8}, at::kInt)), Error);     // another dtype
  EXPECT_THROW(model->loss(at::randint(192, {1, 200}, at::kLong)), Error);  // more than 128 positions
  EXPECT_THROW(model->logits(at::full({1, 3}, 192, at::kLong)), Error);
  EXPECT_THROW(model->logits(at::full({1, 3}, -1, at::kLong)), Error);
}

TEST(CausalLM, ASecondBackwardThroughOneLossIsAnError) {
  const auto model = load_model(kModels + "nano-llama");
  const at::Tensor loss = model->loss(at::randint(96, {1, 8}, at::kLong));
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(loss.backward(), std::exception);
}

TEST(CausalLM, DropoutActsInTrainingOnly) {
  std::ifstream in(kModels + "tiny-gpt2/config.json");
  auto config = nlohmann::json::parse(in);
  config["resid_pdrop"] = config["embd_pdrop"] = config["attn_pdrop"] = 0.5;
  const auto model = make_model(config.dump(), 1);
  const at::Tensor ids = at::randint(192, {1, 8}, at::kLong);
  EXPECT_NE(model->loss(ids).item<double>(), model->loss(ids).item<double>());
  model->eval();
  EXPECT_EQ(model->loss(ids).item<double>(), model->loss(ids).item<double>());
}

TEST(CausalLM, FreshWeightsDependOnTheSeedAlone) {
  std::ifstream in(kModels + "tiny-llama/config.json");
  const std::string config((std::istreambuf_iterator<char>(in)), {});
  const auto a = make_model(config, 3)->named_parameters(), b = make_model(config, 3)->named_parameters(),
             c = make_model(config, 4)->named_parameters();
  EXPECT_TRUE(a["lm_head.weight"].equal(b["lm_head.weight"]));
  EXPECT_FALSE(a["lm_head.weight"].equal(c["lm_head.weight"]));
  EXPECT_TRUE(a["model.norm.weight"].equal(at::ones({64})));
  EXPECT_NEAR(a["lm_head.weight"].std().item<double>(), 0.05, 0.005) << "initializer_range of the config";
}

}  // namespace
}  // namespace deepspeed
