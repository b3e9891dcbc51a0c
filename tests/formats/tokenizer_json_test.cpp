#include "formats/tokenizer_json.h"

#include <gtest/gtest.h>

#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

TokenizerJson tokenizer(const std::string& vocabulary, const std::string& decoder) {
  return TokenizerJson::parse(R"({"model":{"type":"BPE","vocab":)" + vocabulary +
                                  R"(},"added_tokens":[{"id":0,"content":"<|end|>","special":true},
    {"id":9,"content":"<extra>","special":false}],"decoder":)" +
                                  decoder + "}",
                              "test");
}

TEST(TokenizerJson, ByteLevelSpellsBytes) {
  // Ġ is a space, Ċ a newline, Ã and ¼ the two bytes of ü.
  const auto t = tokenizer(R"({"Hello":1,"Ġworld":2,"Ċ":3,"Ã":4,"¼":5})", R"({"type":"ByteLevel"})");
  EXPECT_EQ(t.decode(std::vector<int64_t>{1, 2, 3, 4, 5}), "Hello world\n\xC3\xBC");
  EXPECT_EQ(t.decode(std::vector<int64_t>{0, 1, 9, 0}), "Hello<extra>");
  EXPECT_EQ(t.decode(std::vector<int64_t>{0, 1}, false), "<|end|>Hello");
  EXPECT_EQ(t.decode(std::vector<int64_t>{}), "");
}

TEST(TokenizerJson, HalfACharacterBecomesOneReplacement) {
  const auto t = tokenizer(R"({"a":1,"Ã":4,"¼":5,"ðŁĺ":6})", R"({"type":"ByteLevel"})");
  EXPECT_EQ(t.decode(std::vector<int64_t>{4, 1}),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(t.decode(std::vector<int64_t>{5, 5}), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(t.decode(std::vector<int64_t>{6}), "\xEF\xBF\xBD") << "three bytes of one emoji";
}

TEST(TokenizerJson, LlamaSequenceReplacesFallsBackAndStrips) {
  const auto t =
      tokenizer(R"({"▁Hello":1,"▁world":2,"<0x0A>":3,"<0xC3>":4,"<0xBC>":5})",
                R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},
                               {"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})");
  EXPECT_EQ(t.decode(std::vector<int64_t>{1, 2, 3, 4, 5}), "Hello world\n\xC3\xBC");
  EXPECT_EQ(t.decode(std::vector<int64_t>{1, 4, 3}), "Hello\xEF\xBF\xBD\xEF\xBF\xBD") << "one replacement a byte";
}

TEST(TokenizerJson, MetaspaceDropsTheSpaceThatEncodingPutInFront) {
  const std::string vocabulary = R"({"▁Hello":1,"▁world":2})";
  const auto always = tokenizer(vocabulary, R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always"})");
  EXPECT_EQ(always.decode(std::vector<int64_t>{1, 2}), "Hello world");
  const auto never = tokenizer(vocabulary, R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"never"})");
  EXPECT_EQ(never.decode(std::vector<int64_t>{1, 2}), " Hello world");
}

TEST(TokenizerJson, UnknownIdsGiveNothing) {
  const auto t = tokenizer(R"({"a":1})", R"({"type":"ByteLevel"})");
  EXPECT_EQ(t.decode(std::vector<int64_t>{-1, 1, 5, 10, INT64_MAX}), "a");
  EXPECT_EQ(t.vocabulary_size(), 10);
  EXPECT_EQ(t.id_of("<extra>"), 9);
  EXPECT_EQ(t.id_of("zz"), -1);
}

TEST(TokenizerJson, NoDecoderMeansSpacesBetween) {
  EXPECT_EQ(tokenizer(R"({"a":1,"b":2})", "null").decode(std::vector<int64_t>{1, 2}), "a b");
}

TEST(TokenizerJson, UnigramVocabulariesAreLists) {
  const auto t = TokenizerJson::parse(R"({"model":{"type":"Unigram","vocab":[["<unk>",0.0],["▁a",-1.5]]},
    "decoder":{"type":"Metaspace","replacement":"▁","add_prefix_space":true}})",
                                      "test");
  EXPECT_EQ(t.decode(std::vector<int64_t>{1}), "a");
}

TEST(TokenizerJson, WhatItCannotReadIsAnErrorThatNamesIt) {
  for (const char* text : {"", "{", "[]", "{}", R"({"model":{}})", R"({"model":{"vocab":3}})", R"({"model":{"vocab":{"a":"b"}}})",
                           R"({"model":{"vocab":{"a":-1}}})", R"({"model":{"vocab":{"a":99999999999}}})",
                           R"({"model":{"vocab":{}},"decoder":{}})", R"({"model":{"vocab":{}},"decoder":{"type":"CTC"}})",
                           R"({"model":{"vocab":{}},"decoder":{"type":"Replace","pattern":{"Regex":"x"},"content":""}})"}) {
    try {
      TokenizerJson::parse(text, "some/tokenizer.json");
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kModelFormat);
      EXPECT_NE(std::string(error.what()).find("some/tokenizer.json"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace deepspeed::formats
