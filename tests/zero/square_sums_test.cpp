#include "zero/square_sums.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "deepspeed/comm.h"

namespace deepspeed::zero {
namespace {

TEST(SquareSums, PiecesInAnyOrderGiveTheBitsOfTheWhole) {
  const int64_t n = 5 * kPieceElements + 77;
  const at::Tensor shard = at::randn({n});
  const auto* data = shard.const_data_ptr<float>();
  SquareSums sums;
  sums.start(n);
  sums.take(data, 4 * kPieceElements, n);
  sums.take(data, 0, kPieceElements);
  sums.take(data, kPieceElements, 4 * kPieceElements);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    EXPECT_EQ(sums.total(), square_sum(shard));
  }
  at::set_num_threads(before);
  EXPECT_NEAR(sums.total(), shard.to(at::kDouble).square().sum().item<double>(), 1e-6);
}

TEST(SquareSums, OneElementThatIsNotFiniteShows) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    at::Tensor shard = at::randn({3 * kPieceElements});
    shard[kPieceElements + 5] = bad;
    EXPECT_FALSE(std::isfinite(square_sum(shard)));
  }
  // Large values do not overflow by themselves.
  EXPECT_TRUE(std::isfinite(square_sum(at::full({kPieceElements}, std::numeric_limits<float>::max()))));
  EXPECT_EQ(square_sum(at::randn({0})), 0.0);
}

}  // namespace
}  // namespace deepspeed::zero
