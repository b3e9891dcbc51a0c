#include <gtest/gtest.h>

#include <cmath>

#include "deepspeed/models.h"
#include "models/sampling.h"

namespace deepspeed {
namespace {

const std::string kModels = std::string(DEEPSPEED_SOURCE_DIR) + "/tests/golden/models/";

TEST(Sampling, TemperatureZeroTakesTheLikeliest) {
  std::mt19937_64 random(1);
  const std::vector<float> logits = {0, 3, 3, -1};
  EXPECT_EQ(models::choose_token(logits, {}, random), 1);
}

TEST(Sampling, FrequenciesFollowTheProbabilities) {
  std::mt19937_64 random(1);
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  std::vector<int> counts(3);
  for (int i = 0; i < 20000; ++i) ++counts[static_cast<size_t>(models::choose_token(logits, {.temperature = 1.0}, random))];
  EXPECT_NEAR(counts[0] / 20000.0, 0.5, 0.02);
  EXPECT_NEAR(counts[1] / 20000.0, 0.3, 0.02);
  EXPECT_NEAR(counts[2] / 20000.0, 0.2, 0.02);
}

TEST(Sampling, TopKAndTopPCutTheRest) {
  std::mt19937_64 random(1);
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  for (int i = 0; i < 2000; ++i) {
    EXPECT_NE(models::choose_token(logits, {.temperature = 1.0, .top_k = 2}, random), 0);
    EXPECT_NE(models::choose_token(logits, {.temperature = 1.0, .top_p = 0.7}, random), 0);
    EXPECT_EQ(models::choose_token(logits, {.temperature = 1.0, .top_p = 1e-9}, random), 1);
    EXPECT_EQ(models::choose_token(logits, {.temperature = 1.0, .top_k = 1}, random), 1);
  }
}

TEST(Generate, TheCacheChangesNothing) {
  for (const char* name : {"tiny-llama", "tiny-llama-tied", "tiny-gpt2", "tiny-qwen2"}) {
    const auto model = load_model(kModels + name);
    GenerateOptions options = {.max_new_tokens = 20, .eos_ids = {-1}};
    const std::vector<int64_t> prompt = {5, 9, 3};
    const auto cached = generate(*model, prompt, options);
    options.use_cache = false;
    EXPECT_EQ(cached, generate(*model, prompt, options)) << name;
    EXPECT_EQ(cached.size(), 20u);
    EXPECT_TRUE(model->is_training()) << "the mode is restored";
  }
}

TEST(Generate, GreedyTakesTheLargestLogit) {
  const auto model = load_model(kModels + "tiny-llama");
  std::vector<int64_t> text = {5, 9, 3};
  const auto fresh = generate(*model, text, {.max_new_tokens = 4, .eos_ids = {-1}});
  for (const int64_t token : fresh) {
    const at::Tensor ids = at::tensor(text, at::kLong).unsqueeze(0);
    EXPECT_EQ(model->next_logits(ids).argmax().item<int64_t>(), token);
    text.push_back(token);
  }
}

TEST(Generate, SameSeedSameText) {
  const auto model = load_model(kModels + "tiny-llama");
  const GenerateOptions options = {.max_new_tokens = 16, .temperature = 1.0, .top_k = 50, .top_p = 0.95, .seed = 4, .eos_ids = {-1}};
  const auto first = generate(*model, {1}, options);
  EXPECT_EQ(first, generate(*model, {1}, options));
  GenerateOptions other = options;
  other.seed = 5;
  EXPECT_NE(first, generate(*model, {1}, other));
}

TEST(Generate, StopsAfterAnEndToken) {
  const auto model = load_model(kModels + "tiny-llama");
  const auto text = generate(*model, {1, 2}, {.max_new_tokens = 8, .eos_ids = {-1}});
  const auto stopped = generate(*model, {1, 2}, {.max_new_tokens = 8, .eos_ids = {text[2]}});
  ASSERT_LE(stopped.size(), 3u);
  EXPECT_EQ(stopped.back(), text[2]);
}

TEST(Generate, WrongOptionsAreErrors) {
  const auto model = load_model(kModels + "tiny-llama");
  EXPECT_THROW(generate(*model, {}, {}), Error);
  EXPECT_THROW(generate(*model, {256}, {}), Error);
  EXPECT_THROW(generate(*model, {1}, {.max_new_tokens = -1}), Error);
  EXPECT_THROW(generate(*model, {1}, {.temperature = -1}), Error);
  EXPECT_THROW(generate(*model, {1}, {.top_k = -1}), Error);
  EXPECT_THROW(generate(*model, {1}, {.top_p = 0}), Error);
  EXPECT_TRUE(generate(*model, {1}, {.max_new_tokens = 0}).empty());
}

}  // namespace
}  // namespace deepspeed
