#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/adam.h"
#include "kernels/cast.h"
#include "kernels/half.h"
#include "kernels/reduce.h"

namespace deepspeed::kernels {
namespace {

std::vector<float> random_values(size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

class AdamSizes : public ::testing::TestWithParam<size_t> {};

TEST_P(AdamSizes, MatchesTheReferenceInEveryForm) {
  const size_t n = GetParam();
  for (const bool decoupled : {true, false}) {
    for (const bool correction : {true, false}) {
      auto p = random_values(n, 1), m = random_values(n, 2);
      std::vector<float> v(n, 0.01f);
      auto p2 = p, m2 = m, v2 = v;
      AdamStep step{.lr = 0.01,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .eps = 1e-8,
                    .weight_decay = 0.1,
                    .decoupled = decoupled,
                    .bias_correction = correction,
                    .step = 1,
                    .grad_scale = 0.25};
      for (; step.step <= 5; ++step.step) {
        const auto g = random_values(n, 10 + static_cast<unsigned>(step.step));
        std::vector<uint16_t> half(n);
        adam(p.data(), g.data(), m.data(), v.data(), {half.data(), DataType::kBFloat16}, n, step);
        adam_reference(p2.data(), g.data(), m2.data(), v2.data(), n, step);
        for (size_t i = 0; i < n; ++i) ASSERT_EQ(half[i], float_to_bf16(p[i])) << i;
      }
      for (size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(p[i], p2[i], 1e-5 + 1e-5 * std::abs(p2[i])) << i;
        ASSERT_NEAR(m[i], m2[i], 1e-6) << i;
        ASSERT_NEAR(v[i], v2[i], 1e-6) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, AdamSizes, ::testing::Values(0, 1, 15, 16, 17, 4096, 4097, 10001));

TEST(Half, RoundsToNearestEvenAndKeepsSpecials) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);  // halfway, even below
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);  // halfway, even above
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(bf16_to_float(float_to_bf16(std::numeric_limits<float>::infinity()))));
  EXPECT_EQ(float_to_fp16(1.0f), 0x3C00);
  EXPECT_EQ(float_to_fp16(65504.0f), 0x7BFF);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7C00);       // rounds to infinity
  EXPECT_EQ(float_to_fp16(5.9604645e-8f), 0x0001);  // smallest subnormal
  EXPECT_EQ(float_to_fp16(2.9e-8f), 0x0000);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = fp16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_fp16(value), bits) << value;
  }
}

TEST(Cast, RoundTrips) {
  const auto values = random_values(1001, 3);
  for (const DataType type : {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16}) {
    std::vector<std::byte> packed(values.size() * bytes_of(type));
    std::vector<float> back(values.size());
    cast_from_float(packed.data(), type, values.data(), values.size());
    cast_to_float(back.data(), packed.data(), type, values.size());
    const float relative = type == DataType::kFloat32 ? 0.0f : type == DataType::kBFloat16 ? 0.004f : 0.0005f;
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(back[i], values[i], relative * std::abs(values[i]) + 1e-7f * (relative > 0));
  }
}

TEST(SumSlices, AddsInOrderAndAccumulates) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{2047}, size_t{2049}, size_t{5000}}) {
    for (const size_t slices : {size_t{1}, size_t{2}, size_t{3}, size_t{5}}) {
      const auto in = random_values(n * slices + 1, 4);
      std::vector<float> out(n, 7.0f), expected(n);
      for (size_t i = 0; i < n; ++i) {
        expected[i] = in[i];
        for (size_t s = 1; s < slices; ++s) expected[i] += in[s * n + i];
      }
      sum_slices(out.data(), in.data(), DataType::kFloat32, slices, n, n, false);
      EXPECT_EQ(out, expected);
      auto twice = out;
      sum_slices(twice.data(), in.data(), DataType::kFloat32, slices, n, n, true);
      for (size_t i = 0; i < n; ++i) ASSERT_NEAR(twice[i], 2 * expected[i], 1e-5);
    }
  }
}

TEST(SquareSum, FindsEverySpecialElement) {
  for (const size_t n : {size_t{1}, size_t{16}, size_t{33}, size_t{5000}}) {
    auto values = random_values(n, 5);
    const auto clean = square_sum(values.data(), n);
    double expected = 0;
    for (const float value : values) expected += static_cast<double>(value) * value;
    EXPECT_TRUE(clean.finite);
    EXPECT_NEAR(clean.sum, expected, 1e-9 * expected);
    for (const size_t at : {size_t{0}, n / 2, n - 1}) {
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        const float before = values[at];
        values[at] = bad;
        EXPECT_FALSE(square_sum(values.data(), n).finite) << n << " " << at;
        values[at] = before;
      }
    }
  }
  // Values whose squares overflow float are still finite.
  const std::vector<float> large(32, 1e30f);
  const auto result = square_sum(large.data(), large.size());
  EXPECT_TRUE(result.finite);
  EXPECT_NEAR(result.sum, 32e60, 1e55);
}

}  // namespace
}  // namespace deepspeed::kernels
