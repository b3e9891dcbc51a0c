#include "tensor/unit_layout.h"

#include <gtest/gtest.h>

namespace deepspeed::tensor {
namespace {

TEST(UnitLayout, SlotsAreAlignedShardsEqualAndNothingOverlaps) {
  for (int world = 1; world <= 8; ++world) {
    const UnitLayout layout({{"a", {5, 7}, 35, 0}, {"one", {1}, 1, 0}, {"none", {0, 3}, 0, 0}, {"b", {64}, 64, 0}}, world);
    EXPECT_EQ(layout.elements(), 100);
    EXPECT_EQ(layout.padded_elements(), layout.shard_elements() * world);
    EXPECT_EQ(layout.shard_elements() % kAlignment, 0);
    int64_t end = 0, covered = 0;
    for (const auto& slot : layout.slots()) {
      EXPECT_EQ(slot.offset % kAlignment, 0);
      EXPECT_GE(slot.offset, end);
      end = slot.offset + slot.elements;
      covered += slot.elements;
    }
    for (const auto& gap : layout.gaps()) covered += gap.size();
    EXPECT_EQ(covered, layout.padded_elements());
    EXPECT_EQ(layout.shard(world - 1).end, layout.padded_elements());
  }
}

TEST(UnitLayout, EmptyUnit) {
  const UnitLayout layout({{"none", {0}, 0, 0}}, 3);
  EXPECT_EQ(layout.padded_elements(), 0);
  EXPECT_EQ(layout.shard_elements(), 0);
}

}  // namespace
}  // namespace deepspeed::tensor
