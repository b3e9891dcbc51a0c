#include "base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "deepspeed/error.h"

namespace deepspeed::base {
namespace {

TEST(Environment, NumbersAreReadWholeOrNotAtAll) {
  EXPECT_EQ(parse_integer("17"), 17);
  EXPECT_EQ(parse_integer("-3"), -3);
  for (const char* bad : {"", " 1", "1 ", "1x", "0x10", "1.0", "+1", "99999999999999999999"})
    EXPECT_EQ(parse_integer(bad), std::nullopt) << bad;
}

TEST(Environment, EmptyTextIsNotSet) {
  const Environment environment({{"A", "x=y"}, {"B", ""}});
  EXPECT_EQ(environment.text("A"), "x=y");
  EXPECT_EQ(environment.text("B"), std::nullopt);
  EXPECT_EQ(environment.text("C"), std::nullopt);
  EXPECT_TRUE(environment.has("B"));
  EXPECT_FALSE(environment.has("C"));
}

TEST(Environment, BadNumberNamesVariableValueAndRange) {
  const Environment environment({{"RANK", "two"}, {"PORT", "70000"}, {"EMPTY", ""}});
  try {
    environment.integer("RANK", 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
    const std::string text = error.what();
    EXPECT_NE(text.find("RANK"), std::string::npos);
    EXPECT_NE(text.find("got \"two\""), std::string::npos);
    EXPECT_NE(text.find("from 0"), std::string::npos);
  }
  EXPECT_THROW(environment.integer("PORT", 1, 65535), Error);
  EXPECT_THROW(environment.integer("EMPTY"), Error);
  EXPECT_EQ(environment.integer("PORT"), 70000);
  EXPECT_EQ(environment.integer("NONE"), std::nullopt);
}

TEST(Environment, SnapshotOfTheProcess) {
  ASSERT_EQ(setenv("DS_TEST_VARIABLE", "a=b", 1), 0);
  EXPECT_EQ(Environment::of_process().text("DS_TEST_VARIABLE"), "a=b");
  ASSERT_EQ(unsetenv("DS_TEST_VARIABLE"), 0);
  EXPECT_FALSE(Environment::of_process().has("DS_TEST_VARIABLE"));
}

}  // namespace
}  // namespace deepspeed::base
