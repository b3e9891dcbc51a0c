// The fused loops against torch's own operators: the same functions take those for double, which the loops do not do.

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include <functional>

#include "deepspeed/error.h"
#include "models/attention.h"
#include "models/fused_ops.h"
#include "models/wide_linear.h"

namespace deepspeed::models {
namespace {

using at::Tensor;
using Function = std::function<Tensor(const std::vector<Tensor>&)>;

struct Result {
  Tensor out;
  std::vector<Tensor> gradients;
};

Result run(const Function& function, const std::vector<Tensor>& inputs, const Tensor& weight, at::ScalarType type) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.to(type, false, true).requires_grad_());
  Result result;
  result.out = function(leaves);
  (result.out.to(at::kDouble) * weight).sum().backward();
  for (const Tensor& leaf : leaves) result.gradients.push_back(leaf.grad());
  return result;
}

void expect_close(const Tensor& got, const Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const double scale = std::max(0.1, expected.abs().max().item<double>());
  EXPECT_LE((got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() / scale, tolerance) << what;
}

// Values and gradients in fp32 and bf16 against double, from inputs that bf16 can hold.
void compare(const Function& function, std::vector<Tensor> inputs, at::IntArrayRef out_shape) {
  for (Tensor& input : inputs) input = input.to(at::kBFloat16).to(at::kDouble);
  const Tensor weight = at::randn(out_shape, at::kDouble).to(at::kBFloat16).to(at::kDouble);
  const Result exact = run(function, inputs, weight, at::kDouble);
  for (const auto& [type, tolerance] : std::vector<std::pair<at::ScalarType, double>>{{at::kFloat, 5e-6}, {at::kBFloat16, 3e-2}}) {
    const Result got = run(function, inputs, weight, type);
    EXPECT_EQ(got.out.scalar_type() == type || got.out.dim() == 0, true);
    expect_close(got.out, exact.out, tolerance, "result");
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(got.gradients[i].scalar_type(), type);
      expect_close(got.gradients[i], exact.gradients[i], tolerance, "gradient " + std::to_string(i));
    }
  }
}

Tensor attention(const std::vector<Tensor>& in) {
  if (in[0].scalar_type() != at::kDouble) return causal_attention(in[0], in[1], in[2], 0.3);
  const Tensor q = in[0].transpose(1, 2), k = in[1].transpose(1, 2), v = in[2].transpose(1, 2);
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, 0.3, true).transpose(1, 2);
}

TEST(FusedOps, CausalAttention) {
  for (const int64_t seq : {1, 2, 63, 64, 65, 130}) {
    for (const int64_t kv_heads : {1, 2, 4}) {
      compare(attention, {at::randn({2, seq, 4, 6}), at::randn({2, seq, kv_heads, 6}), at::randn({2, seq, kv_heads, 6})}, {2, seq, 4, 6});
    }
  }
}

TEST(FusedOps, CausalAttentionOfPartsOfOneTensor) {
  const auto parts = [](const std::vector<Tensor>& in) {
    const auto split = in[0].view({2, 9, 3, 2, 8}).unbind(2);
    return attention(split);
  };
  compare(parts, {at::randn({2, 9, 48})}, {2, 9, 2, 8});
}

TEST(FusedOps, CausalAttentionOfLargeScoresIsFinite) {
  const Tensor q = at::randn({1, 70, 1, 8}) * 1e4;
  EXPECT_TRUE(causal_attention(q, q, q, 1.0).isfinite().all().item<bool>());
}

TEST(FusedOps, Linear) {
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {7, 5}, {64, 96}, {2100, 2100}}) {  // the last in blocks
    compare([](const auto& t) { return models::linear(t[0], t[1], t[2]); },
            {at::randn({2, 3, in}) / 8, at::randn({out, in}), at::randn({out})}, {2, 3, out});
    compare([](const auto& t) { return models::linear(t[0], t[1].t(), {}); }, {at::randn({4, in}) / 8, at::randn({in, out})}, {4, out});
  }
}

TEST(FusedOps, LinearGivesGradientsOnlyWhereAsked) {
  const Tensor x = at::randn({3, 4}).to(at::kBFloat16).requires_grad_(), weight = at::randn({5, 4}).to(at::kBFloat16);
  models::linear(x, weight, {}).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
}

TEST(FusedOps, RmsNorm) {
  for (const int64_t width : {2, 7, 16, 33, 576}) {
    for (const int64_t rows : {1, 3, 130}) {
      compare([](const auto& in) { return rms_norm(in[0], in[1], 1e-5); }, {at::randn({rows, 2, width}) + 1.5, at::randn({width})},
              {rows, 2, width});
    }
  }
}

TEST(FusedOps, RmsNormOfRowsThatAreNotContiguous) {
  compare([](const auto& in) { return rms_norm(in[0].transpose(0, 1), in[1], 1e-5); }, {at::randn({5, 4, 16}), at::randn({16})},
          {4, 5, 16});
}

TEST(FusedOps, Rotate) {
  for (const int64_t dim : {2, 6, 16, 64}) {
    const Tensor angles = at::randn({9, dim / 2}, at::kDouble) * 3;
    const auto function = [&](const std::vector<Tensor>& in) {
      return rotate(in[0], angles.cos().to(at::kBFloat16).to(in[0].scalar_type()), angles.sin().to(at::kBFloat16).to(in[0].scalar_type()));
    };
    compare(function, {at::randn({2, 9, 3, dim})}, {2, 9, 3, dim});
  }
}

TEST(FusedOps, RotateOfAPartOfALargerTensor) {
  const Tensor angles = at::randn({9, 4}, at::kDouble);
  const auto function = [&](const std::vector<Tensor>& in) {
    return rotate(in[0].narrow(2, 1, 2), angles.cos().to(in[0].scalar_type()), angles.sin().to(in[0].scalar_type()));
  };
  compare(function, {at::randn({2, 9, 4, 8})}, {2, 9, 2, 8});
}

TEST(FusedOps, SwiGlu) {
  for (const int64_t n : {1, 15, 40000}) {
    compare([](const auto& in) { return swiglu(in[0], in[1]); }, {at::randn({n}) * 4, at::randn({n})}, {n});
  }
}

TEST(FusedOps, SwiGluOfExtremeValuesIsFinite) {
  const Tensor gate = at::tensor({-1e30f, -200.0f, -88.5f, 0.0f, 88.5f, 200.0f, 1e30f});
  const Tensor out = swiglu(gate, at::ones({7}));
  EXPECT_TRUE(out.isfinite().all().item<bool>());
  EXPECT_FLOAT_EQ(out[5].item<float>(), 200.0f);
  EXPECT_FLOAT_EQ(out[1].item<float>(), 0.0f);
}

TEST(FusedOps, CrossEntropy) {
  for (const int64_t vocab : {2, 100, 5000}) {
    const Tensor labels = at::randint(vocab, {6}, at::kLong);
    compare([&](const auto& in) { return mean_cross_entropy(in[0] * 1, labels); }, {at::randn({6, vocab}) * 5}, {});
  }
}

TEST(FusedOps, CrossEntropyOfLargeLogits) {
  const Tensor labels = at::tensor({int64_t{0}, int64_t{1}});
  const Tensor logits = at::tensor({1000.0f, -1000.0f, 1000.0f, -1000.0f}).view({2, 2});
  EXPECT_FLOAT_EQ(mean_cross_entropy(logits, labels).item<float>(), 1000.0f);
  EXPECT_THROW(mean_cross_entropy(logits, at::tensor({int64_t{0}, int64_t{2}})), Error);
}

TEST(FusedOps, NotANumberStaysVisible) {
  Tensor x = at::randn({4, 32});
  x[2][5] = std::nanf("");
  EXPECT_TRUE(rms_norm(x, at::ones({32}), 1e-5)[2].isnan().all().item<bool>());
  EXPECT_TRUE(swiglu(x, x)[2][5].isnan().item<bool>());
  EXPECT_TRUE(mean_cross_entropy(x.clone(), at::randint(32, {4}, at::kLong)).isnan().item<bool>());
}

}  // namespace
}  // namespace deepspeed::models
