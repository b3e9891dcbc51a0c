#include "precision/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "deepspeed/error.h"

namespace deepspeed::precision {
namespace {

std::vector<double> scales(const LossScalerOptions& options, const std::string& overflow) {
  LossScaler scaler(options);
  std::vector<double> trace;
  for (const char flag : overflow) {
    scaler.update(flag == '1');
    trace.push_back(scaler.scale());
  }
  return trace;
}

TEST(LossScaler, A01ToleranceAndGrowth) {
  const LossScalerOptions options{.initial = 16, .window = 2, .hysteresis = 2};
  EXPECT_EQ(scales(options, "101000011"), (std::vector<double>{16, 16, 8, 8, 8, 16, 16, 16, 8}));
  EXPECT_EQ(scales(options, "0000000"), (std::vector<double>{16, 16, 32, 32, 64, 64, 128}));
  auto consecutive = options;
  consecutive.consecutive_hysteresis = true;
  EXPECT_EQ(scales(consecutive, "101000011"), (std::vector<double>{16, 16, 16, 16, 16, 32, 32, 32, 16}));
}

TEST(LossScaler, A02TheMinimumIsAnErrorNotAnEndlessSkip) {
  LossScaler scaler({.initial = 2, .window = 1000, .hysteresis = 1, .minimum = 1});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  try {
    scaler.update(true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumerics);
    EXPECT_NE(std::string(error.what()).find("minimum 1"), std::string::npos) << error.what();
  }
}

TEST(LossScaler, StaticScalesStay) { EXPECT_EQ(scales({.dynamic = false, .initial = 128}, "0110"), std::vector<double>(4, 128.0)); }

TEST(LossScaler, StaysWithinFloat) {
  for (const double scale : scales({.initial = 0x1p120, .window = 1}, std::string(20, '0'))) {
    EXPECT_TRUE(std::isfinite(static_cast<float>(scale))) << scale;
  }
}

TEST(LossScaler, OptionsOutOfRangeAreNamed) {
  const double inf = INFINITY;
  for (const LossScalerOptions& bad :
       {LossScalerOptions{.initial = 0}, LossScalerOptions{.initial = inf}, LossScalerOptions{.window = 0}, LossScalerOptions{.window = -3},
        LossScalerOptions{.hysteresis = 0}, LossScalerOptions{.minimum = 0}, LossScalerOptions{.dynamic = false, .initial = -2}}) {
    try {
      LossScaler scaler(bad);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfigInvalid);
    }
  }
}

TEST(LossScaler, StateContinuesTheRun) {
  const LossScalerOptions options{.initial = 256, .window = 3, .hysteresis = 2};
  const std::string first = "0101100", second = "000101000000";
  const auto whole = scales(options, first + second);
  LossScaler scaler(options);
  for (const char flag : first) scaler.update(flag == '1');
  LossScaler resumed(options);
  resumed.load_state_json(scaler.state_json());
  for (size_t i = 0; i < second.size(); ++i) {
    resumed.update(second[i] == '1');
    EXPECT_EQ(resumed.scale(), whole[first.size() + i]) << i;
  }
  for (const char* bad : {"", "{}", "[]", R"({"scale": -1, "iteration": 0, "last_overflow": -1, "tolerance": 2})",
                          R"({"scale": 2, "iteration": 3, "last_overflow": 3, "tolerance": 2})"}) {
    EXPECT_THROW(resumed.load_state_json(bad), Error) << bad;
    EXPECT_EQ(resumed.scale(), whole.back());
  }
  LossScaler fixed({.dynamic = false, .initial = 8});
  fixed.load_state_json(scaler.state_json());
  EXPECT_EQ(fixed.scale(), 8);
}

}  // namespace
}  // namespace deepspeed::precision
