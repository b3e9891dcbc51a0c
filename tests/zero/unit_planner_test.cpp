#include "zero/unit_planner.h"

#include <gtest/gtest.h>

#include <set>

namespace deepspeed::zero {
namespace {

std::vector<PlannedParameter> model() {
  std::vector<PlannedParameter> list{{"embed.weight", {100, 8}, 800, true, 0}};
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    list.push_back({prefix + "up.weight", {16, 8}, 128, true, 0});
    list.push_back({prefix + "norm.weight", {8}, 8, true, 1});
    list.push_back({prefix + "down.weight", {8, 16}, 128, layer != 1, 0});
  }
  return list;
}

void expect_complete(const std::vector<PlannedParameter>& parameters, const std::vector<PlannedUnit>& units) {
  std::set<size_t> seen;
  for (const auto& unit : units) {
    for (const size_t member : unit.members) {
      EXPECT_TRUE(seen.insert(member).second);
      EXPECT_EQ(parameters[member].trainable, unit.trainable);
      if (unit.trainable) {
        EXPECT_EQ(parameters[member].group, unit.group);
      }
    }
  }
  EXPECT_EQ(seen.size(), parameters.size());
}

TEST(UnitPlanner, Stage3FollowsTheBlocks) {
  Config::Zero zero;
  zero.param_persistence_threshold = 10;
  const auto parameters = model();
  const auto units = plan_units(parameters, policy_of(3), zero);
  expect_complete(parameters, units);
  std::set<std::vector<size_t>> groups;
  for (const auto& unit : units) {
    groups.insert(unit.members);
    EXPECT_EQ(unit.always_whole, parameters[unit.members[0]].elements <= 10);
  }
  EXPECT_TRUE(groups.count({0}));        // embedding
  EXPECT_TRUE(groups.count({1, 3}));     // layer 0
  EXPECT_TRUE(groups.count({2, 5, 8}));  // the norms stay whole, together
  EXPECT_TRUE(groups.count({6}));        // frozen part of layer 1
}

TEST(UnitPlanner, ModelThresholdLimitsWhatStaysWhole) {
  Config::Zero zero;
  zero.param_persistence_threshold = 10;
  zero.model_persistence_threshold = 16;
  int64_t whole = 0;
  for (const auto& unit : plan_units(model(), policy_of(3), zero)) {
    if (unit.always_whole) whole += 8 * static_cast<int64_t>(unit.members.size());
  }
  EXPECT_EQ(whole, 16);
}

TEST(UnitPlanner, BucketSizeLimitsUnits) {
  Config::Zero zero;
  zero.reduce_bucket_size = 150;
  const auto parameters = model();
  for (int stage = 0; stage <= 3; ++stage) {
    const auto units = plan_units(parameters, policy_of(stage), zero);
    expect_complete(parameters, units);
    for (const auto& unit : units) {
      int64_t elements = 0;
      for (const size_t member : unit.members) elements += parameters[member].elements;
      EXPECT_TRUE(elements <= 150 || unit.members.size() == 1);
    }
  }
}

}  // namespace
}  // namespace deepspeed::zero
