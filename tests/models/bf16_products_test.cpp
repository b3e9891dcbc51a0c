#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "deepspeed/comm.h"
#include "deepspeed/models.h"
#include "models/wide_linear.h"

namespace deepspeed {
namespace {

TEST(Bf16Products, RanksTakeOneChoice) {
  std::vector<int> fast(3);
  run_ranks_as_threads(3, [&](std::shared_ptr<Communicator> ranks) {
    choose_bf16_products(*ranks);
    fast[static_cast<size_t>(ranks->rank())] = models::has_fast_bf16() ? 1 : 0;
  });
  EXPECT_EQ(fast[1], fast[0]);
  EXPECT_EQ(fast[2], fast[0]);
}

// Whatever was chosen, the values are those of bf16.
TEST(Bf16Products, AreThoseOfTheReferenceUpToRounding) {
  const auto x = at::randn({7, 65}).to(at::kBFloat16), weight = at::randn({33, 65}).to(at::kBFloat16);
  const auto exact = at::linear(x.to(at::kDouble), weight.to(at::kDouble));
  EXPECT_TRUE(at::allclose(models::linear(x, weight, {}).to(at::kDouble), exact, 1e-2, 1e-2));
}

}  // namespace
}  // namespace deepspeed
