#include "formats/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

namespace fs = std::filesystem;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("safetensors_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

std::string file_with(const std::string& json, size_t data_size) {
  const uint64_t length = json.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + json + std::string(data_size, '\x01');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "test.safetensors");
}

std::span<const std::byte> bytes_of(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }

TEST_F(Safetensors, WhatIsWrittenIsReadBack) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, scalar = {7};
  SafetensorsWriter writer(
      path("x.safetensors"),
      {{"a", Dtype::kF32, {2, 3}}, {"empty", Dtype::kBF16, {0, 5}}, {"\"quoted\" ü", Dtype::kF32, {}}, {"odd", Dtype::kU8, {3}}});
  writer.write("a", bytes_of(a));
  writer.write("empty", {});
  writer.write("\"quoted\" ü", bytes_of(scalar));
  writer.append(std::as_bytes(std::span("xy", 2)));
  writer.append(std::as_bytes(std::span("z", 1)));
  EXPECT_FALSE(fs::exists(path("x.safetensors"))) << "the file must not appear before it is complete";
  writer.finish(true);

  const SafetensorsFile file(path("x.safetensors"));
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.at("a").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(file.bytes(file.at("a")).data(), a.data(), 24), 0);
  EXPECT_EQ(file.at("empty").size(), 0u);
  EXPECT_EQ(std::memcmp(file.bytes(file.at("\"quoted\" ü")).data(), scalar.data(), 4), 0);
  EXPECT_EQ(std::memcmp(file.bytes(file.at("odd")).data(), "xyz", 3), 0);
  EXPECT_EQ(file.find("b"), nullptr);
  EXPECT_THROW(file.at("b"), Error);
}

TEST_F(Safetensors, DataStartsAtAMultipleOfEight) {
  for (const char* name : {"a", "ab", "abc", "abcdefgh"}) {
    EXPECT_EQ(make_safetensors_header({{name, Dtype::kF32, {1}}}, {}).size() % 8, 0u);
  }
}

TEST_F(Safetensors, WritesToADescriptorFromItsPosition) {
  const int fd = ::open(path("fd").c_str(), O_CREAT | O_RDWR, 0600);
  const std::vector<float> a = {1};
  SafetensorsWriter writer(fd, "fd", {{"a", Dtype::kF32, {1}}});
  writer.write("a", bytes_of(a));
  writer.finish(false);
  ::close(fd);
  EXPECT_EQ(SafetensorsFile(path("fd")).entries().size(), 1u);
}

TEST_F(Safetensors, WriterRefusesWhatItWasNotTold) {
  const std::vector<float> two = {1, 2};
  EXPECT_THROW(make_safetensors_header({{"a", Dtype::kF32, {1}}, {"a", Dtype::kF32, {1}}}, {}), Error);
  EXPECT_THROW(make_safetensors_header({{"__metadata__", Dtype::kF32, {1}}}, {}), Error);
  EXPECT_THROW(make_safetensors_header({{"a", Dtype::kF64, {INT64_MAX, 2}}}, {}), Error);
  EXPECT_THROW(make_safetensors_header({{"\xff", Dtype::kF64, {1}}}, {}), Error);
  SafetensorsWriter writer(path("y"), {{"a", Dtype::kF32, {2}}, {"b", Dtype::kF32, {2}}});
  EXPECT_THROW(writer.write("b", bytes_of(two)), Error);             // out of order
  EXPECT_THROW(writer.write("a", bytes_of(two).subspan(4)), Error);  // too short
  writer.write("a", bytes_of(two));
  EXPECT_THROW(writer.finish(false), Error);  // b is missing
  writer.append(bytes_of(two));
  EXPECT_THROW(writer.append(bytes_of(two)), Error);  // more than declared
}

TEST_F(Safetensors, AnUnfinishedFileLeavesNothingBehind) {
  { SafetensorsWriter writer(path("z"), {{"a", Dtype::kF32, {2}}}); }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Safetensors, ReadsWhatOthersWrite) {
  // Padding with spaces, metadata, tensors listed in another order than their data, an empty file.
  const auto header = parse(file_with(
      R"({"b":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]},"__metadata__":{"k":"v"},"a":{"shape":[1],"data_offsets":[0,8],"dtype":"I64"}}   )",
      12));
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.metadata.at("k"), "v");
  EXPECT_TRUE(parse(file_with("{}", 0)).tensors.empty());
}

struct Malformed {
  const char* what;
  std::string json;
  size_t data_size;
};

TEST_F(Safetensors, MalformedHeadersAreErrorsThatNameTheFile) {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::vector<Malformed> table = {
      {"not an object", "[1]", 0},
      {"leading space", " {}", 0},
      {"not closed", "{", 0},
      {"not JSON", "{]", 0},
      {"something after the object", "{} x", 0},
      {"bytes that are not UTF-8", "{\"\xff\xfe\":{" + good + "}}", 8},
      {"half a surrogate pair", "{\"\\ud800\":{" + good + "}}", 8},
      {"a zero byte", std::string("{}\0 ", 4), 0},
      {"a comment", "{/* */}", 0},
      {"a tensor that is a number", R"({"a":3})", 0},
      {"a tensor that is null", R"({"a":null})", 0},
      {"a tensor that is an array", R"({"a":[]})", 0},
      {"no dtype", R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8},
      {"no shape", R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8},
      {"no offsets", R"({"a":{"dtype":"F32","shape":[2]}})", 8},
      {"an unknown key", "{\"a\":{" + good + ",\"x\":1}}", 8},
      {"a key twice", "{\"a\":{\"dtype\":\"F32\"," + good + "}}", 8},
      {"a name twice", "{\"a\":{" + good + "},\"a\":{" + good + "}}", 8},
      {"an unknown dtype", R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8},
      {"a dtype that is a number", R"({"a":{"dtype":4,"shape":[2],"data_offsets":[0,8]}})", 8},
      {"a negative extent", R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8},
      {"a fractional extent", R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8},
      {"an extent beyond 64 bits", R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}})", 8},
      {"an extent beyond 63 bits", R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]}})", 8},
      {"a shape whose product overflows", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0},
      {"a shape that overflows before its zero", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0},
      {"a nested shape", R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", 8},
      {"one offset", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8},
      {"three offsets", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8},
      {"offsets the wrong way round", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8},
      {"offsets beyond the file", R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 8},
      {"a size that does not fit the shape", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8},
      {"a hole at the start", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8},
      {"a hole between", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3},
      {"an overlap", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3},
      {"two tensors in one place", "{\"a\":{" + good + "},\"b\":{" + good + "}}", 8},
      {"data after the last tensor", "{\"a\":{" + good + "}}", 9},
      {"a file cut short", "{\"a\":{" + good + "}}", 7},
      {"metadata that is not text", R"({"__metadata__":{"a":1}})", 0},
      {"a metadata key twice", R"({"__metadata__":{"a":"1","a":"1"}})", 0},
      {"nested metadata", R"({"__metadata__":{"a":{}}})", 0},
  };
  for (const Malformed& entry : table) {
    try {
      parse(file_with(entry.json, entry.data_size));
      ADD_FAILURE() << "accepted " << entry.what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kModelFormat) << entry.what;
      EXPECT_NE(std::string(error.what()).find("test.safetensors"), std::string::npos) << entry.what << ": " << error.what();
    }
  }
}

TEST_F(Safetensors, LengthOfTheHeaderIsNotBelieved) {
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{100'000'001}, UINT64_MAX, UINT64_MAX - 7}) {
    std::string file = file_with("{}", 0);
    std::memcpy(file.data(), &length, 8);
    EXPECT_THROW(parse(file), Error) << length;
  }
  EXPECT_THROW(parse(""), Error);
  EXPECT_THROW(parse("1234567"), Error);
}

TEST_F(Safetensors, ErrorsNameTheTensor) {
  try {
    parse(file_with(R"({"model.norm.weight":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.norm.weight"), std::string::npos) << error.what();
  }
}

TEST_F(Safetensors, DamagedBytesNeverCrash) {
  const std::string good =
      make_safetensors_header({{"layer.weight", Dtype::kF32, {2, 3}}, {"layer.bias", Dtype::kBF16, {4}}}, {{"format", "pt"}}) +
      std::string(32, '\0');
  ASSERT_EQ(parse(good).tensors.size(), 2u);
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bad = good;
    for (int i = 0; i < 3; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    if (round % 4 == 0) bad.resize(random() % (bad.size() + 1));
    try {
      for (const TensorEntry& entry : parse(bad).tensors) ASSERT_LE(entry.end, bad.size());
    } catch (const Error&) {
    }
  }
}

TEST_F(Safetensors, AMissingFileIsNamed) {
  try {
    SafetensorsFile file(path("nowhere.safetensors"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFile);
    EXPECT_NE(std::string(error.what()).find("nowhere.safetensors"), std::string::npos);
  }
  EXPECT_THROW(SafetensorsFile file(folder_.string()), Error);
}

}  // namespace
}  // namespace deepspeed::formats
