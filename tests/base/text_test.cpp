#include "base/text.h"

#include <gtest/gtest.h>

namespace deepspeed::base {
namespace {

TEST(Text, NearestFindsTypingErrorsAndNothingElse) {
  const std::vector<std::string> keys = {"train_batch_size", "gradient_clipping", "bf16"};
  EXPECT_EQ(nearest("train_batchsize", keys), "train_batch_size");
  EXPECT_EQ(nearest("gradient_cliping", keys), "gradient_clipping");
  EXPECT_EQ(nearest("completely_other_thing", keys), "");
}

TEST(Text, HumanNumbers) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_count(134515008), "134.5 M");
}

}  // namespace
}  // namespace deepspeed::base
