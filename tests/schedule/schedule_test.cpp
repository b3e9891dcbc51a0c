#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include "deepspeed/error.h"

namespace deepspeed::schedule {
namespace {

std::vector<GroupRates> groups(std::vector<double> rates) {
  std::vector<GroupRates> result;
  for (const double rate : rates) result.push_back({rate, std::make_pair(0.9, 0.999)});
  return result;
}

// The message of the error that making the schedule throws, or "".
std::string refusal(const std::string& type, const std::string& params, std::vector<double> rates = {0.1}) {
  auto before = groups(rates);
  try {
    make_schedule(type, params, before);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfigInvalid);
    for (size_t i = 0; i < rates.size(); ++i) EXPECT_EQ(before[i].lr, rates[i]) << "groups changed";
    return error.what();
  }
  return "";
}

void expect_names(const std::string& message, std::initializer_list<const char*> parts) {
  EXPECT_FALSE(message.empty());
  for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
}

std::vector<double> first_group(const std::string& type, const std::string& params, int steps, double rate = 1.0) {
  auto rates = groups({rate});
  auto schedule = make_schedule(type, params, rates);
  std::vector<double> trace;
  for (int i = 0; i < steps; ++i) {
    schedule->step();
    trace.push_back(rates[0].lr);
  }
  return trace;
}

TEST(Schedule, WithoutTypeRatesStay) {
  auto rates = groups({0.1, 0.2});
  auto schedule = make_schedule("", "", rates);
  schedule->step();
  EXPECT_EQ(rates[0].lr, 0.1);
  EXPECT_EQ(rates[1].lr, 0.2);
  EXPECT_EQ(schedule->last_lr(), (std::vector<double>{0.1, 0.2}));
  EXPECT_EQ(schedule->iteration(), 0);
}

TEST(Schedule, A76WarmupEndsAtEachGroupsOwnRate) {
  auto rates = groups({0.02, 0.005});
  auto schedule = make_schedule("WarmupLR", R"({"warmup_type": "linear", "warmup_num_steps": 4})", rates);
  EXPECT_EQ(rates[0].lr, 0.0);
  for (int i = 0; i < 6; ++i) schedule->step();
  EXPECT_DOUBLE_EQ(rates[0].lr, 0.02);
  EXPECT_DOUBLE_EQ(rates[1].lr, 0.005);
}

TEST(Schedule, A77CosineStartsAllGroupsAtZero) {
  auto rates = groups({0.1, 0.2});
  make_schedule("WarmupCosineLR", R"({"total_num_steps": 10, "warmup_num_steps": 3})", rates);
  EXPECT_EQ(rates[0].lr, 0.0);
  EXPECT_EQ(rates[1].lr, 0.0);
}

TEST(Schedule, A78OneStepOfWarmupWorksAndNoneIsRefused) {
  EXPECT_EQ(first_group("WarmupLR", R"({"warmup_max_lr": 1.0, "warmup_num_steps": 1})", 3), (std::vector<double>{0, 1, 1}));
  for (const char* type : {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}) {
    const std::string total = std::string(type) == "WarmupLR" ? "" : R"("total_num_steps": 9, )";
    for (const char* steps : {"0", "-5"}) {
      expect_names(refusal(type, "{" + total + "\"warmup_num_steps\": " + steps + "}"), {"warmup_num_steps", steps, "an integer > 0"});
    }
  }
}

TEST(Schedule, A79StepSizesOfZeroAreRefused) {
  expect_names(refusal("LRRangeTest", R"({"lr_range_test_step_size": 0})"), {"lr_range_test_step_size", "got 0"});
  expect_names(refusal("OneCycle", R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_first_step_size": 0, "cycle_second_step_size": 0})"),
               {"cycle_first_step_size", "cycle_second_step_size"});
  expect_names(refusal("OneCycle", R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1, "cycle_first_step_size": 0, "cycle_second_step_size": 4})"),
               {"cycle_first_step_size"});
}

TEST(Schedule, A80OneCycleTakesARatePerGroup) {
  auto rates = groups({1, 1});
  auto schedule = make_schedule(
      "OneCycle", R"({"cycle_min_lr": [0.1, 0.2], "cycle_max_lr": 1.0, "cycle_first_step_size": 4, "cycle_max_mom": [0.9, 0.95]})", rates);
  EXPECT_DOUBLE_EQ(rates[0].lr, 0.1);
  EXPECT_DOUBLE_EQ(rates[1].lr, 0.2);
  for (int i = 0; i < 4; ++i) schedule->step();
  EXPECT_DOUBLE_EQ(rates[0].lr, 1.0);
  for (int i = 0; i < 20; ++i) schedule->step();
  EXPECT_DOUBLE_EQ(rates[1].lr, 0.2);
  EXPECT_DOUBLE_EQ(rates[1].betas->first, 0.95);
  expect_names(refusal("OneCycle", R"({"cycle_min_lr": [0.1, 0.2, 0.3], "cycle_max_lr": 1.0})", {1, 1}),
               {"cycle_min_lr", "got 3 values", "allowed 2"});
}

TEST(Schedule, A81UnknownWarmupTypeIsRefusedByEverySchedule) {
  expect_names(refusal("WarmupLR", R"({"warmup_type": "Linear"})"), {"warmup_type", "Linear", "log | linear"});
  expect_names(refusal("WarmupCosineLR", R"({"total_num_steps": 9, "warmup_type": "cubic"})"), {"warmup_type", "cubic", "log | linear"});
}

TEST(Schedule, A82OneCycleWithoutDecayStaysAtTheMinimum) {
  const auto trace =
      first_group("OneCycle", R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1.0, "cycle_first_step_size": 2, "decay_lr_rate": 0.5})", 12);
  EXPECT_DOUBLE_EQ(trace.back(), 0.1);
}

TEST(Schedule, A83DecayOfAnyLength) {
  const std::string linear = R"("warmup_max_lr": 1.0, "warmup_type": "linear", "warmup_num_steps": 2)";
  EXPECT_EQ(first_group("WarmupDecayLR", R"({"total_num_steps": 6, )" + linear + "}", 8),
            (std::vector<double>{0, .5, 1, .75, .5, .25, 0, 0}));
  EXPECT_EQ(first_group("WarmupDecayLR", R"({"total_num_steps": 2, )" + linear + "}", 4), (std::vector<double>{0, .5, 0, 0}));
}

TEST(Schedule, CosineStaysAtItsEndPastTheTotal) {
  const auto trace = first_group("WarmupCosineLR", R"({"total_num_steps": 14, "warmup_num_steps": 4, "cos_min_ratio": 0.1})", 40);
  EXPECT_NEAR(trace[13], 0.1, 1e-12);
  EXPECT_NEAR(trace[39], 0.1, 1e-12);
  const auto no_room = first_group("WarmupCosineLR", R"({"total_num_steps": 5, "warmup_num_steps": 5})", 8);
  EXPECT_NEAR(no_room.back(), 1e-4, 1e-12);
}

TEST(Schedule, StairsHoldTheRate) {
  const auto trace = first_group(
      "OneCycle", R"({"cycle_min_lr": 0.0, "cycle_max_lr": 1.0, "cycle_first_step_size": 8, "cycle_first_stair_count": 4})", 17);
  EXPECT_EQ(trace, (std::vector<double>{0, .25, .25, .5, .5, .75, .75, 1, .75, .75, .5, .5, .25, .25, 0, 0, 0}));
}

TEST(Schedule, EveryBadParameterIsNamedAtOnce) {
  expect_names(
      refusal("WarmupDecayLR", R"({"warmup_num_step": 5, "warmup_max_lr": "big", "warmup_type": 3, "warmup_min_lr": true})"),
      {"warmup_num_step:", "did you mean \"warmup_num_steps\"", "warmup_max_lr", "warmup_type", "warmup_min_lr", "total_num_steps"});
  expect_names(refusal("Warmup", ""), {"Warmup", "WarmupLR"});
  expect_names(refusal("WarmupLR", "{"), {"not JSON"});
  expect_names(refusal("WarmupLR", "[1]"), {"an object"});
  auto rates = groups({0.1});
  try {
    make_schedule("CosineAnnealingLR", "", rates);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotBuilt);
  }
}

TEST(Schedule, StateRestoresTheRates) {
  const std::string params = R"({"warmup_max_lr": 0.01, "warmup_num_steps": 12})";
  auto rates = groups({0.01});
  auto schedule = make_schedule("WarmupLR", params, rates);
  for (int i = 0; i < 5; ++i) schedule->step();
  auto fresh = groups({0.01});
  auto resumed = make_schedule("WarmupLR", params, fresh);
  resumed->load_state_json(schedule->state_json());
  resumed->apply();
  EXPECT_EQ(fresh[0].lr, rates[0].lr);
  for (const char* bad : {"", "{}", "[]", "{\"last_batch_iteration\": \"4\"}"}) {
    try {
      resumed->load_state_json(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
    }
    EXPECT_EQ(resumed->iteration(), 4);
  }
}

TEST(Schedule, OddParametersLeaveANote) {
  auto rates = groups({0.1});
  EXPECT_EQ(make_schedule("OneCycle", R"({"cycle_min_lr": 1.0, "cycle_max_lr": 0.1})", rates)->notes().size(), 1u);
  EXPECT_EQ(make_schedule("WarmupDecayLR", R"({"total_num_steps": 4, "warmup_num_steps": 9})", rates)->notes().size(), 1u);
  std::vector<GroupRates> plain = {{0.1, std::nullopt}};
  EXPECT_EQ(make_schedule("OneCycle", R"({"cycle_min_lr": 0.1, "cycle_max_lr": 1.0})", plain)->notes().size(), 1u);
  EXPECT_FALSE(plain[0].betas.has_value());
  EXPECT_TRUE(make_schedule("WarmupLR", "", rates)->notes().empty());
}

}  // namespace
}  // namespace deepspeed::schedule
