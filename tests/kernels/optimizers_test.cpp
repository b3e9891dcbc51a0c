// Lion, Adagrad, SGD and LAMB against their long double references.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernels/adagrad.h"
#include "kernels/adam.h"
#include "kernels/half.h"
#include "kernels/lamb.h"
#include "kernels/lion.h"
#include "kernels/sgd.h"

namespace deepspeed::kernels {
namespace {

constexpr size_t kSizes[] = {0, 1, 15, 16, 17, 4096, 4097, 10001};
constexpr int kSteps = 5;

std::vector<float> random_values(size_t n, unsigned seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

// Parameters and up to two states, once for the kernel and once for the reference.
struct Memory {
  explicit Memory(size_t n) : p(random_values(n, 1)), a(n), b(n) {}
  std::vector<float> p, a, b;
};

using Kernel = std::function<void(Memory&, const std::vector<float>& gradient, HalfCopy copy, int step)>;
using Reference = std::function<void(Memory&, const std::vector<float>& gradient, int step)>;

void expect_same(const Kernel& kernel, const Reference& reference, double tolerance = 2e-6) {
  for (const size_t n : kSizes) {
    for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
      Memory fast(n), exact(n);
      std::vector<uint16_t> half(n);
      for (int step = 1; step <= kSteps; ++step) {
        const auto g = random_values(n, 10 + static_cast<unsigned>(step));
        kernel(fast, g, {half.data(), type}, step);
        reference(exact, g, step);
      }
      for (size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(fast.p[i], exact.p[i], tolerance * (1 + std::abs(exact.p[i]))) << n << " " << i;
        ASSERT_NEAR(fast.a[i], exact.a[i], tolerance * (1 + std::abs(exact.a[i]))) << n << " " << i;
        ASSERT_NEAR(fast.b[i], exact.b[i], tolerance * (1 + std::abs(exact.b[i]))) << n << " " << i;
        ASSERT_EQ(half[i], type == DataType::kFloat16 ? float_to_fp16(fast.p[i]) : float_to_bf16(fast.p[i])) << n << " " << i;
      }
    }
  }
}

TEST(Lion, MatchesTheReference) {
  const LionStep step{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .grad_scale = 0.25};
  expect_same([&](Memory& m, const auto& g, HalfCopy copy, int) { lion(m.p.data(), g.data(), m.a.data(), copy, g.size(), step); },
              [&](Memory& m, const auto& g, int) { lion_reference(m.p.data(), g.data(), m.a.data(), g.size(), step); });
}

TEST(Lion, ZeroHasThePositiveSign) {
  float p[] = {1.0f, 1.0f, 1.0f}, m[] = {0.0f, 0.0f, 0.0f};
  const float g[] = {0.0f, 2.0f, -2.0f};
  lion(p, g, m, {}, 3, {.lr = 0.5});
  EXPECT_EQ(p[0], 0.5f);
  EXPECT_EQ(p[1], 0.5f);
  EXPECT_EQ(p[2], 1.5f);
}

TEST(Adagrad, MatchesTheReferenceInEveryForm) {
  for (const bool raw : {true, false}) {
    AdagradStep step{.lr = 0.05, .lr_decay = 0.1, .eps = 1e-6, .weight_decay = 0.1, .raw_numerator = raw, .grad_scale = 0.25};
    expect_same(
        [&](Memory& m, const auto& g, HalfCopy copy, int t) {
          step.step = t;
          adagrad(m.p.data(), g.data(), m.a.data(), copy, g.size(), step);
        },
        [&](Memory& m, const auto& g, int t) {
          step.step = t;
          adagrad_reference(m.p.data(), g.data(), m.a.data(), g.size(), step);
        },
        // A gradient that decay nearly cancels divides two small numbers.
        raw ? 2e-2 : 1e-4);
  }
}

TEST(Sgd, MatchesTheReferenceInEveryForm) {
  for (const SgdStep& form : {SgdStep{.lr = 0.1}, SgdStep{.lr = 0.1, .weight_decay = 0.1}, SgdStep{.lr = 0.1, .momentum = 0.9},
                              SgdStep{.lr = 0.1, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.1},
                              SgdStep{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}}) {
    SgdStep step = form;
    step.grad_scale = 0.25;
    expect_same(
        [&](Memory& m, const auto& g, HalfCopy copy, int t) {
          step.step = t;
          sgd(m.p.data(), g.data(), step.momentum == 0 ? nullptr : m.a.data(), copy, g.size(), step);
        },
        [&](Memory& m, const auto& g, int t) {
          step.step = t;
          sgd_reference(m.p.data(), g.data(), m.a.data(), g.size(), step);
        });
  }
}

LambStep lamb_form(bool inside, bool correction) {
  return {.lr = 0.01,
          .beta1 = 0.8,
          .beta2 = 0.95,
          .eps = 1e-6,
          .weight_decay = 0.1,
          .eps_inside_sqrt = inside,
          .bias_correction = correction,
          .grad_scale = 0.25};
}

TEST(Lamb, MatchesTheReferenceInEveryForm) {
  for (const bool inside : {true, false}) {
    for (const bool correction : {true, false}) {
      LambStep step = lamb_form(inside, correction);
      expect_same(
          [&](Memory& m, const auto& g, HalfCopy copy, int t) {
            step.step = t;
            const auto sums = lamb_moments(m.p.data(), g.data(), m.a.data(), m.b.data(), g.size(), step);
            lamb_apply(m.p.data(), m.a.data(), m.b.data(), copy, g.size(), step, lamb_trust(sums, step));
          },
          [&](Memory& m, const auto& g, int t) {
            step.step = t;
            lamb_reference(m.p.data(), g.data(), m.a.data(), m.b.data(), g.size(), step);
          },
          1e-5);
    }
  }
}

TEST(Lamb, PiecesOfAParameterGiveTheWholeOnesStep) {
  const size_t n = 5001, cut = 1234;
  const LambStep step = lamb_form(false, true);
  Memory whole(n), parts(n);
  const auto g = random_values(n, 9);
  const auto sums = lamb_moments(whole.p.data(), g.data(), whole.a.data(), whole.b.data(), n, step);
  lamb_apply(whole.p.data(), whole.a.data(), whole.b.data(), {}, n, step, lamb_trust(sums, step));
  auto first = lamb_moments(parts.p.data(), g.data(), parts.a.data(), parts.b.data(), cut, step);
  const auto rest = lamb_moments(parts.p.data() + cut, g.data() + cut, parts.a.data() + cut, parts.b.data() + cut, n - cut, step);
  first.parameter += rest.parameter;
  first.update += rest.update;
  lamb_apply(parts.p.data(), parts.a.data(), parts.b.data(), {}, cut, step, lamb_trust(first, step));
  lamb_apply(parts.p.data() + cut, parts.a.data() + cut, parts.b.data() + cut, {}, n - cut, step, lamb_trust(first, step));
  for (size_t i = 0; i < n; ++i) ASSERT_NEAR(whole.p[i], parts.p[i], 1e-6) << i;
}

TEST(Lamb, TrustIsClampedAndOneWithoutANorm) {
  const LambStep step{.min_trust = 0.3, .max_trust = 2.0};
  EXPECT_EQ(lamb_trust({4, 1}, step), 2.0);
  EXPECT_EQ(lamb_trust({100, 1}, step), 2.0);
  EXPECT_EQ(lamb_trust({1, 100}, step), 0.3);
  EXPECT_EQ(lamb_trust({0, 5}, step), 1.0);
  EXPECT_EQ(lamb_trust({5, 0}, step), 1.0);
  EXPECT_EQ(lamb_trust({}, step), 1.0);
}

TEST(Adam, AmsgradMatchesTheReference) {
  for (const bool decoupled : {true, false}) {
    const size_t n = 4097;
    Memory fast(n), exact(n);
    std::vector<float> top(n), exact_top(n);
    for (int t = 1; t <= 8; ++t) {
      // Gradients that shrink: the variance falls and the largest one stays.
      const auto g = random_values(n, 20 + static_cast<unsigned>(t), 1.0f / static_cast<float>(t * t));
      const AdamStep step{.lr = 0.01, .beta2 = 0.9, .weight_decay = 0.1, .decoupled = decoupled, .step = t, .grad_scale = 0.5};
      adam(fast.p.data(), g.data(), fast.a.data(), fast.b.data(), {}, n, step, top.data());
      adam_reference(exact.p.data(), g.data(), exact.a.data(), exact.b.data(), n, step, exact_top.data());
    }
    for (size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(fast.p[i], exact.p[i], 2e-6 * (1 + std::abs(exact.p[i]))) << i;
      ASSERT_NEAR(top[i], exact_top[i], 2e-6) << i;
      ASSERT_GE(top[i], fast.b[i]) << i;
    }
  }
}

// In units in the last place. The two round their states after each step and may part at a tie; nearer zero than a quarter the unit is that of a
// quarter, as what an update brings has the rounding of lr, not of the parameter.
TEST(Adam, StaysWithinTwoUlpOfTheReferenceOverAHundredSteps) {
  for (const double lr : {1e-4, 1e-3}) {
    for (const double weight_decay : {0.0, 0.01, 0.1}) {
      const size_t n = 10001;
      Memory fast(n), exact(n);
      for (int t = 1; t <= 100; ++t) {
        const auto g = random_values(n, 100 + static_cast<unsigned>(t), 0.01f);
        const AdamStep step{.lr = lr, .weight_decay = weight_decay, .step = t};
        adam(fast.p.data(), g.data(), fast.a.data(), fast.b.data(), {}, n, step);
        adam_reference(exact.p.data(), g.data(), exact.a.data(), exact.b.data(), n, step);
      }
      for (size_t i = 0; i < n; ++i) {
        const float size = std::max(std::abs(exact.p[i]), 0.25f);
        const double ulp = static_cast<double>(std::nextafter(size, 4.0f * size)) - size;
        ASSERT_LE(std::abs(static_cast<double>(fast.p[i]) - exact.p[i]), 2 * ulp) << "lr " << lr << " decay " << weight_decay << " " << i;
      }
    }
  }
}

// Known fault A107: pieces of one step must share its bias correction and give the same bits.
TEST(Adam, A107PiecesOfOneStepHaveTheSameBits) {
  const size_t n = 6000, half = 3000;
  auto p = random_values(half, 1);
  p.insert(p.end(), p.begin(), p.begin() + half);
  auto g = random_values(half, 2);
  g.insert(g.end(), g.begin(), g.begin() + half);
  std::vector<float> m(n), v(n);
  adam(p.data(), g.data(), m.data(), v.data(), {}, half, {.step = 3});
  adam(p.data() + half, g.data() + half, m.data() + half, v.data() + half, {}, half, {.step = 3});
  for (size_t i = 0; i < half; ++i) ASSERT_EQ(p[i], p[half + i]) << i;
}

}  // namespace
}  // namespace deepspeed::kernels
