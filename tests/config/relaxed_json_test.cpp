#include "config/relaxed_json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace deepspeed::config {
namespace {

using nlohmann::json;

json value(const std::string& text) {
  const auto parsed = parse_relaxed_json(text);
  EXPECT_TRUE(parsed.issues.empty()) << text << ": " << (parsed.issues.empty() ? "" : parsed.issues[0].message);
  return parsed.value;
}

std::string error(const std::string& text) {
  const auto parsed = parse_relaxed_json(text);
  EXPECT_EQ(parsed.issues.size(), 1u) << text;
  return parsed.issues.empty() ? "" : parsed.issues[0].message;
}

TEST(RelaxedJson, PlainJsonIsReadAsTheLibraryReadsIt) {
  for (const char* text :
       {"{}", "[]", "[1,-2,3.5,1e3,0.0,-0]", R"({"a":{"b":[true,false,null,"x"]}})", R"(["\"\\\/\b\f\n\r\tA\u00e9\ud83d\ude00"])",
        "[9223372036854775807,-9223372036854775808]", "[\"\xC3\xA9\xE8\xAE\xAD\xF0\x9F\x98\x80\"]"}) {
    EXPECT_EQ(value(text), json::parse(text)) << text;
  }
  EXPECT_TRUE(value("[9223372036854775807]")[0].is_number_integer());
  EXPECT_TRUE(value("[123456789012345678901234567890]")[0].is_number_float());
}

TEST(RelaxedJson, CommentsCommasMarksAndSpecialNumbers) {
  EXPECT_EQ(value("\xEF\xBB\xBF# first\n{ // two\n\"a\": /* three */ 1,\n}# end"), json::parse(R"({"a":1})"));
  EXPECT_EQ(value("[1,2,]"), json::parse("[1,2]"));
  EXPECT_EQ(value(R"({"a": "// not # a /* comment"})")["a"], "// not # a /* comment");
  EXPECT_TRUE(std::isnan(value("[NaN]")[0].get<double>()));
  EXPECT_EQ(value("[-Infinity]")[0].get<double>(), -INFINITY);
}

TEST(RelaxedJson, HjsonForms) {
  const json expected = json::parse(R"({"a": 1, "b": {"c": true, "d": "some text"}, "e": ["x", "y"]})");
  EXPECT_EQ(value("{\n a: 1\n b: {c: true\n d: some text  \n}\n 'e': ['x', \"y\"]\n}"), expected);
  EXPECT_EQ(value("a: 1  # one\n\"b\": {c: true, d: 'some text'}\r\ne: [\n'x'\n'y'\n]\n"), expected);
  EXPECT_EQ(value("{a: '''one\n    two\n    '''}"), json({{"a", "one\ntwo"}}));
  EXPECT_EQ(value("{\n  a: '''\n     one\n       two\n     '''\n}"), json({{"a", "one\n  two"}}));
  EXPECT_EQ(value("a: 'it\\'s'"), json({{"a", "it's"}}));
  EXPECT_EQ(value("a: 5 apples\nb: 5"), json({{"a", "5 apples"}, {"b", 5}}));
  EXPECT_EQ(value("a: \xE8\xAE\xAD"), json({{"a", "\xE8\xAE\xAD"}}));
  for (const char* text : {"{a: 1 b: 2}", "{a: x}", "a: 1}", "{a: }", "{: 1}", "a: 'open", "a: '''open", "{a: x,\n b: 1}", "{a: 1\n"}) {
    EXPECT_FALSE(error(text).empty()) << text;
  }
}

TEST(RelaxedJson, MistakesAreShownWithTheirPlace) {
  EXPECT_NE(error("").find("empty"), std::string::npos);
  EXPECT_NE(error("{\n\"a\": 1,\n \"b\" 2}").find("line 3, column 6"), std::string::npos);
  EXPECT_NE(error("{\"a\" 1}").find("\":\" after key \"a\""), std::string::npos);
  EXPECT_NE(error("{\"a\": tru, \"b\": 2}").find("line 1, column 7"), std::string::npos);
  EXPECT_NE(error("{\"a\": 1} x").find("after the end"), std::string::npos);
  EXPECT_NE(error("/* open").find("never closed"), std::string::npos);
  EXPECT_NE(error("[\"open").find("never closed"), std::string::npos);
  for (const char* text :
       {"[01]", "[+1]", "[.5]", "[1.]", "[1e]", "[tru]", "[truex]", "[1 2]", "{\"a\":1", "[,]", "[\"\\x\"]", "[\"\\u12\"]", "[\"\\ud800\"]",
        "[\"\\udc00\"]", "[\"a\nb\"]", "[\"\xFF\"]", "[\"\xC3\"]", "[\"\xED\xA0\x80\"]", "{\"a\":1,,}"}) {
    EXPECT_FALSE(error(text).empty()) << text;
  }
}

TEST(RelaxedJson, DeepNestingEndsInAnErrorNotInACrash) {
  EXPECT_NE(error(std::string(100000, '[')).find("nesting"), std::string::npos);
  EXPECT_NO_FATAL_FAILURE(value(std::string(60, '[') + std::string(60, ']')));
}

TEST(RelaxedJson, EveryRepeatedKeyIsListedAndTheFirstValueStays) {
  const auto parsed = parse_relaxed_json(R"({"a": 1, "b": {"c": 1, "c": 2}, "a": 3, "d": [{"e": 1, "e": 2}]})");
  ASSERT_EQ(parsed.issues.size(), 3u);
  EXPECT_EQ(parsed.issues[0].path, "b.c");
  EXPECT_EQ(parsed.issues[1].path, "a");
  EXPECT_EQ(parsed.issues[2].path, "d[0].e");
  EXPECT_EQ(parsed.value["a"], 1);
}

}  // namespace
}  // namespace deepspeed::config
