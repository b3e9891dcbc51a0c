#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "models/wide_linear.h"

namespace deepspeed {
namespace {

// The choice itself needs a processor with bf16 instructions; what it rests on runs everywhere. Ranks of a job: tests/process/bf16_products_test.py.
TEST(Bf16Products, BothWaysAreMeasured) {
  const auto times = models::measure_bf16_products(8, 64);
  EXPECT_GT(times.native, 0);
  EXPECT_GT(times.fp32, 0);
}

// Whatever was chosen, the values are those of bf16.
TEST(Bf16Products, AreThoseOfTheReferenceUpToRounding) {
  const auto x = at::randn({7, 65}).to(at::kBFloat16), weight = at::randn({33, 65}).to(at::kBFloat16);
  const auto exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
  EXPECT_TRUE(at::allclose(models::linear(x, weight, {}).to(at::kDouble), exact, 1e-2, 1e-2));
}

}  // namespace
}  // namespace deepspeed
