// The loss without logits against torch's own operators in double.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "deepspeed/models.h"

namespace deepspeed {
namespace {

using at::Tensor;

struct Result {
  Tensor loss, grad_hidden, grad_weight;
};

Tensor leaf(const Tensor& value, at::ScalarType type) { return value.to(type, false, true).requires_grad_(); }

Result ours(const Tensor& hidden, const Tensor& weight, const Tensor& labels, at::ScalarType type, double factor = 1) {
  const Tensor x = leaf(hidden, type), w = leaf(weight, type);
  const Tensor loss = linear_cross_entropy(x, w, labels);
  (factor == 1 ? loss : loss * factor).backward();
  return {loss, x.grad(), w.grad()};
}

Result reference(const Tensor& hidden, const Tensor& weight, const Tensor& labels, double factor = 1) {
  const Tensor x = leaf(hidden, at::kDouble), w = leaf(weight, at::kDouble);
  const Tensor loss = at::cross_entropy_loss(at::linear(x, w).reshape({-1, w.size(0)}), labels.reshape({-1}));
  (loss * factor).backward();
  return {loss, x.grad(), w.grad()};
}

void expect_close(const Tensor& got, const Tensor& expected, double tolerance, const char* what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double scale = std::max(1e-6, expected.abs().max().item<double>());
  EXPECT_LE((got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() / scale, tolerance) << what;
}

void compare(const Tensor& hidden_values, const Tensor& weight_values, const Tensor& labels, double factor = 1,
             double float_tolerance = 5e-6) {
  // Values that bf16 can hold, so that only the arithmetic differs.
  const Tensor hidden = hidden_values.to(at::kBFloat16).to(at::kDouble), weight = weight_values.to(at::kBFloat16).to(at::kDouble);
  const Result exact = reference(hidden, weight, labels, factor);
  for (const auto& [type, tolerance] : {std::pair(at::kFloat, float_tolerance), std::pair(at::kBFloat16, 4e-3)}) {
    const Result got = ours(hidden, weight, labels, type, factor);
    EXPECT_EQ(got.loss.scalar_type(), at::kFloat);
    EXPECT_EQ(got.grad_hidden.scalar_type(), type);
    EXPECT_EQ(got.grad_weight.scalar_type(), type);
    expect_close(got.loss, exact.loss, 2e-6, "loss");
    expect_close(got.grad_hidden, exact.grad_hidden, tolerance, "gradient of hidden");
    expect_close(got.grad_weight, exact.grad_weight, tolerance, "gradient of weight");
  }
}

TEST(LinearCrossEntropy, ValuesAndGradients) {
  for (const int64_t vocabulary : {1, 2, 17, 100, 5003}) {
    for (const int64_t tokens : {1, 3, 16, 65}) {
      compare(at::randn({tokens, 24}), at::randn({vocabulary, 24}) / 2, at::randint(vocabulary, {tokens}, at::kLong));
    }
  }
}

// A vocabulary above 2^18 makes blocks of 32 tokens; 70 of them are cut unevenly. Products over so long a sum lose digits: torch's fp32 gradient of
// hidden is 2e-4 from double here.
TEST(LinearCrossEntropy, SeveralBlocksOfTokens) {
  const int64_t vocabulary = 300'007;
  for (const int64_t tokens : {32, 33, 70}) {
    compare(at::randn({tokens, 8}), at::randn({vocabulary, 8}), at::randint(vocabulary, {tokens}, at::kLong), 1, 5e-4);
  }
}

// A bf16 weight of more than 4 Mi elements is widened in parts.
TEST(LinearCrossEntropy, SeveralPartsOfTheWeight) {
  compare(at::randn({7, 1000}) / 16, at::randn({9001, 1000}) / 4, at::randint(9001, {7}, at::kLong));
}

TEST(LinearCrossEntropy, LeadingDimensionsAndViews) {
  const Tensor hidden = at::randn({6, 3, 16}).transpose(0, 1), labels = at::randint(50, {6, 3}, at::kLong).t();
  compare(hidden, at::randn({16, 50}).t(), labels);
}

TEST(LinearCrossEntropy, IgnoredLabelsCountNowhere) {
  Tensor labels = at::randint(40, {50}, at::kLong);
  for (const int64_t i : {0, 7, 8, 31, 49}) labels[i] = -100;
  const Tensor hidden = at::randn({50, 12}), weight = at::randn({40, 12});
  compare(hidden, weight, labels);
  const Result got = ours(hidden, weight, labels, at::kFloat);
  EXPECT_EQ(got.grad_hidden[7].abs().max().item<float>(), 0.0f);
  const Tensor own_index = labels.masked_fill(labels == -100, 3);  // any index may be the ignored one
  const Tensor loss = linear_cross_entropy(hidden, weight, own_index, 3);
  const Tensor expected = at::cross_entropy_loss(at::linear(hidden, weight), own_index, {}, 1, 3);
  EXPECT_NEAR(loss.item<float>(), expected.item<float>(), 1e-5);
}

TEST(LinearCrossEntropy, NothingToScoreIsNaNWithoutGradients) {
  const Result got = ours(at::randn({5, 4}), at::randn({9, 4}), at::full({5}, -100, at::kLong), at::kFloat);
  EXPECT_TRUE(got.loss.isnan().item<bool>());
  EXPECT_EQ(got.grad_hidden.abs().max().item<float>(), 0.0f);
  EXPECT_EQ(got.grad_weight.abs().max().item<float>(), 0.0f);
  EXPECT_TRUE(linear_cross_entropy(at::randn({0, 4}), at::randn({9, 4}), at::full({0}, 0, at::kLong)).isnan().item<bool>());
}

TEST(LinearCrossEntropy, TheLossMayBeScaled) { compare(at::randn({9, 16}), at::randn({30, 16}), at::randint(30, {9}, at::kLong), 0.25); }

TEST(LinearCrossEntropy, TiedWeightGetsBothGradients) {
  const Tensor ids = at::randint(30, {2, 9}, at::kLong), labels = at::randint(30, {2, 9}, at::kLong), values = at::randn({30, 16});
  const Tensor w = leaf(values, at::kFloat), exact = leaf(values, at::kDouble);
  linear_cross_entropy(at::embedding(w, ids).tanh(), w, labels).backward();
  at::cross_entropy_loss(at::linear(at::embedding(exact, ids).tanh(), exact).reshape({-1, 30}), labels.reshape({-1})).backward();
  expect_close(w.grad(), exact.grad(), 5e-6, "gradient");
}

TEST(LinearCrossEntropy, GradientsOnlyWhereAsked) {
  const Tensor labels = at::randint(9, {5}, at::kLong), x = at::randn({5, 4}), w = at::randn({9, 4});
  const float expected = at::cross_entropy_loss(at::linear(x, w), labels).item<float>();
  const Tensor plain = linear_cross_entropy(x, w, labels);
  EXPECT_FALSE(plain.requires_grad());
  EXPECT_NEAR(plain.item<float>(), expected, 1e-5);
  const Result both = ours(x, w, labels, at::kFloat);
  const Tensor trained_x = leaf(x, at::kFloat), trained_w = leaf(w, at::kFloat);
  linear_cross_entropy(trained_x, w, labels).backward();
  EXPECT_TRUE(trained_x.grad().equal(both.grad_hidden));
  linear_cross_entropy(x, trained_w, labels).backward();
  EXPECT_TRUE(trained_w.grad().equal(both.grad_weight));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(linear_cross_entropy(trained_x, trained_w, labels).requires_grad());
}

TEST(LinearCrossEntropy, OtherTypesTakeTorchsOperators) {
  const Tensor x = leaf(at::randn({5, 4}), at::kDouble), w = leaf(at::randn({9, 4}), at::kDouble);
  const Tensor labels = at::randint(9, {5}, at::kLong);
  const Tensor loss = linear_cross_entropy(x, w, labels);
  EXPECT_EQ(loss.scalar_type(), at::kDouble);
  EXPECT_DOUBLE_EQ(loss.item<double>(), at::cross_entropy_loss(at::linear(x, w), labels).item<double>());
}

TEST(LinearCrossEntropy, LargeLogitsAndNotANumber) {
  const Tensor x = at::full({2, 1}, 1000.0f), w = at::tensor({1.0f, -1.0f}).view({2, 1});
  EXPECT_FLOAT_EQ(linear_cross_entropy(x, w, at::tensor({int64_t{0}, int64_t{1}})).item<float>(), 1000.0f);
  Tensor broken = at::randn({4, 32});
  broken[2][5] = std::nanf("");
  EXPECT_TRUE(linear_cross_entropy(broken, at::randn({9, 32}), at::randint(9, {4}, at::kLong)).isnan().item<bool>());
}

TEST(LinearCrossEntropy, UsageErrors) {
  const Tensor x = at::randn({2, 4}).requires_grad_(), w = at::randn({9, 4}), labels = at::tensor({int64_t{0}, int64_t{8}});
  EXPECT_THROW(linear_cross_entropy(x, w, at::tensor({int64_t{0}, int64_t{9}})), Error);
  EXPECT_THROW(linear_cross_entropy(x, w, at::tensor({int64_t{0}, int64_t{-1}})), Error);
  EXPECT_THROW(linear_cross_entropy(x, w, at::tensor({int64_t{0}})), Error);
  EXPECT_THROW(linear_cross_entropy(x, at::randn({9, 5}), labels), Error);
  EXPECT_THROW(linear_cross_entropy(x, w.to(at::kBFloat16), labels), Error);
  EXPECT_THROW(linear_cross_entropy(x, w, labels.to(at::kInt)), Error);
  const Tensor loss = linear_cross_entropy(x, w, labels);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(loss.backward(), Error);
}

}  // namespace
}  // namespace deepspeed
