// Elastic batches and memory estimates.
#include <gtest/gtest.h>

#include "deepspeed/elasticity.h"
#include "deepspeed/error.h"
#include "deepspeed/memory_estimate.h"

namespace deepspeed {
namespace {

std::string refusal(const std::string& section, int64_t devices = 0) {
  try {
    plan_elastic_batch(section, devices);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfigInvalid);
    return error.what();
  }
  return "";
}

TEST(Elasticity, TheBatchIsTheOneThatMostDeviceCountsCanShare) {
  const auto plan =
      plan_elastic_batch(R"({"enabled": true, "max_train_batch_size": 10000, "micro_batch_sizes": [8, 12, 16, 17], "min_gpus": 32,
                                           "max_gpus": 1500, "version": 0.1})",
                         64);
  EXPECT_EQ(plan.train_batch_size, 9792);
  EXPECT_EQ(plan.device_counts.size(), 23u);
  EXPECT_EQ(plan.micro_batch, 17);
}

TEST(Elasticity, A84MistakesAreNamed) {
  const std::string good = R"("enabled": true, "max_train_batch_size": 64, "micro_batch_sizes": [4])";
  EXPECT_NE(refusal("{" + good + R"(, "version": 0.1})", 7).find("7 devices, allowed 1, 2, 3, 4, 6, 12"), std::string::npos);
  EXPECT_NE(refusal("{" + good + "}").find("number of devices"), std::string::npos);
  EXPECT_NE(refusal("{" + good + R"(, "version": 0.3})", 2).find("version"), std::string::npos);
  EXPECT_NE(refusal(R"({"enabled": true, "max_train_batch_size": 6, "micro_batch_sizes": [8]})", 1).find("micro_batch_sizes"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"enabled": true, "max_train_batch_size": 10, "micro_batch_sizes": [2], "version": 0.1, "min_gpus": 100})")
                .find("min_gpus"),
            std::string::npos);
  EXPECT_NE(refusal("{" + good + R"(, "prefer_larger_batch": 1})", 1).find("prefer_larger_batch"), std::string::npos);
  for (const char* bad :
       {"null", "{", "{}", R"({"enabled": true})", R"({"enabled": true, "max_train_batch_size": 8, "micro_batch_sizes": []})",
        R"({"enabled": true, "max_train_batch_size": 8, "micro_batch_sizes": [0]})"}) {
    EXPECT_FALSE(refusal(bad, 1).empty()) << bad;
  }
}

TEST(MemoryEstimate, A108Stage2WithoutOffload) {
  EXPECT_EQ(estimate_zero2({.parameters = 1000, .devices_per_node = 2}, false).device, 11000);
}

TEST(MemoryEstimate, Stage3HoldsOneLayerAndAShare) {
  const EstimateInput input{.parameters = 1000, .largest_layer_parameters = 100, .nodes = 2, .devices_per_node = 2};
  EXPECT_EQ(estimate_zero3(input, true, true, true).device, 400);
  EXPECT_EQ(estimate_zero3(input, true, false, true).device, 400 + 500);
  EXPECT_EQ(estimate_zero3(input, false, false, true).device, 400 + 4500);
  EXPECT_EQ(estimate_zero3(input, true, true, true).host, 13500);
}

}  // namespace
}  // namespace deepspeed
