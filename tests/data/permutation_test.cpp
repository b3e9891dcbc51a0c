#include "data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace deepspeed::data {
namespace {

std::vector<uint64_t> all_of(uint64_t size, uint64_t seed, uint64_t epoch) {
  const Permutation order(size, seed, epoch);
  std::vector<uint64_t> out;
  for (uint64_t i = 0; i < size; ++i) out.push_back(order(i));
  return out;
}

TEST(Permutation, EveryNumberComesOnce) {
  for (const uint64_t size : {1u, 2u, 3u, 4u, 5u, 7u, 16u, 17u, 100u, 1023u, 1024u, 1025u, 70000u}) {
    std::vector<bool> seen(size);
    for (const uint64_t value : all_of(size, 5, 2)) {
      ASSERT_LT(value, size);
      EXPECT_FALSE(seen[value]);
      seen[value] = true;
    }
  }
}

TEST(Permutation, SeedAndPassChangeTheOrder) {
  const auto order = all_of(1000, 1, 0);
  EXPECT_EQ(order, all_of(1000, 1, 0));
  EXPECT_NE(order, all_of(1000, 2, 0));
  EXPECT_NE(order, all_of(1000, 1, 1));
}

TEST(Permutation, TheOrderIsThisOneOnEveryMachine) { EXPECT_EQ(all_of(8, 42, 0), (std::vector<uint64_t>{0, 3, 2, 5, 7, 1, 6, 4})); }

TEST(Permutation, LooksRandom) {
  // Mean distance of a number from its place is a third of the size; neighbours do not stay neighbours.
  const uint64_t size = 50000;
  const auto order = all_of(size, 3, 0);
  double distance = 0;
  int neighbours = 0;
  for (uint64_t i = 0; i < size; ++i) {
    distance += std::abs(static_cast<double>(order[i]) - static_cast<double>(i));
    if (i > 0 && (order[i] == order[i - 1] + 1 || order[i] + 1 == order[i - 1])) ++neighbours;
  }
  EXPECT_NEAR(distance / static_cast<double>(size) / static_cast<double>(size), 1.0 / 3, 0.01);
  EXPECT_LT(neighbours, 20);
}

}  // namespace
}  // namespace deepspeed::data
