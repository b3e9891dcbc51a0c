#include "formats/indexed_dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

namespace fs = std::filesystem;

class Dataset : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("indexed_dataset_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    prefix_ = (folder_ / "tokens").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(TokenType type, const std::vector<std::vector<int64_t>>& documents) {
    IndexedDatasetWriter writer(prefix_, type);
    for (const auto& document : documents) {
      writer.add(document);
      writer.end_document();
    }
    writer.finish(false);
  }
  std::string index() const {
    std::ifstream in(prefix_ + ".idx", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void replace_index(const std::string& bytes) { std::ofstream(prefix_ + ".idx", std::ios::binary) << bytes; }
  template <typename T>
  std::string changed(size_t offset, T value) {
    std::string bytes = index();
    std::memcpy(bytes.data() + offset, &value, sizeof(T));
    return bytes;
  }

  fs::path folder_;
  std::string prefix_;
};

TEST_F(Dataset, EveryTokenTypeComesBack) {
  const std::vector<std::pair<TokenType, std::vector<int64_t>>> cases = {
      {TokenType::kU8, {0, 255}},         {TokenType::kI8, {-128, 127}},     {TokenType::kI16, {-32768, 32767}},
      {TokenType::kI32, {-5, INT32_MAX}}, {TokenType::kI64, {INT64_MIN, 7}}, {TokenType::kU16, {0, 65535}},
      {TokenType::kU32, {0, UINT32_MAX}}, {TokenType::kU64, {0, INT64_MAX}}};
  for (const auto& [type, values] : cases) {
    write(type, {values, {}, {1, 2, 3}});
    const IndexedDataset data(prefix_);
    EXPECT_EQ(data.type(), type);
    EXPECT_EQ(data.sequences(), 3);
    EXPECT_EQ(data.documents(), 3);
    EXPECT_EQ(data.tokens(), 5);
    EXPECT_EQ(data.document_begin(2), 2);
    EXPECT_EQ(data.sequence_length(1), 0);
    EXPECT_EQ(data.sequence(2).size(), 3 * token_size(type));
    ASSERT_TRUE(data.contiguous());
    std::vector<int64_t> all(5);
    data.read(0, all);
    EXPECT_EQ(all, (std::vector<int64_t>{values[0], values[1], 1, 2, 3}));
    std::vector<int64_t> part(2);
    data.read(3, part);
    EXPECT_EQ(part, (std::vector<int64_t>{2, 3}));
    EXPECT_THROW(data.read(4, part), Error);
  }
}

TEST_F(Dataset, BytesAreThoseOfTheFormat) {
  write(TokenType::kU16, {{1, 2}, {3}});
  const std::string bytes = index();
  const std::string expected(
      "MMIDIDX\0\0"
      "\1\0\0\0\0\0\0\0"
      "\x08"
      "\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0"
      "\2\0\0\0\1\0\0\0"
      "\0\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0"
      "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0",
      9 + 8 + 1 + 16 + 8 + 16 + 24);
  EXPECT_EQ(bytes, expected);
}

TEST_F(Dataset, BothNumberingsOfUnsignedTypesAreUnderstood) {
  write(TokenType::kU16, {{1, 65535}, {3}});
  replace_index(changed(17, uint8_t{6}));  // DeepSpeed's uint16
  EXPECT_EQ(IndexedDataset(prefix_).type(), TokenType::kU16);
  write(TokenType::kU64, {{1, 2}});
  EXPECT_EQ(index()[17], 8);
  EXPECT_EQ(IndexedDataset(prefix_).type(), TokenType::kU64);
  replace_index(changed(17, uint8_t{6}));  // Megatron-LM's double
  EXPECT_THROW(IndexedDataset data(prefix_), Error);
}

TEST_F(Dataset, AnEmptyOneIsAllowed) {
  write(TokenType::kI32, {});
  EXPECT_EQ(IndexedDataset(prefix_).tokens(), 0);
}

TEST_F(Dataset, WriterRefusesTokensThatDoNotFit) {
  IndexedDatasetWriter writer(prefix_, TokenType::kU16);
  EXPECT_THROW(writer.add(std::vector<int64_t>{65536}), Error);
  EXPECT_THROW(writer.add(std::vector<int64_t>{-1}), Error);
}

TEST_F(Dataset, MissingFilesAreErrors) {
  EXPECT_FALSE(IndexedDataset::exists(prefix_));
  EXPECT_THROW(IndexedDataset data(prefix_), Error);
}

TEST_F(Dataset, DamagedIndexesAreErrorsThatNameTheFile) {
  write(TokenType::kU16, {{1, 2}, {3}});
  EXPECT_TRUE(IndexedDataset::exists(prefix_));
  const std::string good = index();
  const std::vector<std::pair<const char*, std::string>> table = {
      {"empty", ""},
      {"cut in the header", good.substr(0, 20)},
      {"cut in the tables", good.substr(0, good.size() - 1)},
      {"longer", good + "x"},
      {"another magic", changed(0, 'X')},
      {"another version", changed(9, uint64_t{2})},
      {"element type 0", changed(17, uint8_t{0})},
      {"floating point tokens", changed(17, uint8_t{7})},
      {"unknown element type", changed(17, uint8_t{11})},
      {"more sequences than bytes", changed(18, uint64_t{1} << 62)},
      {"more marks than bytes", changed(26, UINT64_MAX)},
      {"negative length", changed(34, int32_t{-1})},
      {"length beyond the data", changed(34, int32_t{4})},
      {"negative pointer", changed(42, int64_t{-2})},
      {"pointer beyond the data", changed(50, int64_t{6})},
      {"huge pointer", changed(50, INT64_MAX)},
      {"mark beyond the sequences", changed(74, int64_t{3})},
      {"marks that go back", changed(66, int64_t{3})},
      {"wider tokens than the data holds", changed(17, uint8_t{5})},
  };
  for (const auto& [what, bytes] : table) {
    replace_index(bytes);
    try {
      IndexedDataset data(prefix_);
      ADD_FAILURE() << "accepted: " << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataFormat) << what;
      EXPECT_NE(std::string(error.what()).find("tokens.idx"), std::string::npos) << error.what();
    }
  }
}

TEST_F(Dataset, SequencesOutOfOrderAreReadButAreNoRun) {
  write(TokenType::kU16, {{1, 2}, {3, 4}});
  std::string bytes = changed(42, int64_t{4});
  replace_index(bytes);
  bytes = changed(50, int64_t{0});
  replace_index(bytes);
  const IndexedDataset data(prefix_);
  EXPECT_FALSE(data.contiguous());
  EXPECT_EQ(static_cast<int>(data.sequence(0)[0]), 3);
  std::vector<int64_t> out(1);
  EXPECT_THROW(data.read(0, out), Error);
}

TEST_F(Dataset, RandomDamageNeverCrashes) {
  write(TokenType::kU16, {{1, 2}, {3}});
  const std::string good = index();
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::string bad = good;
    for (int i = 0; i < 2; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    replace_index(bad);
    try {
      const IndexedDataset data(prefix_);
      for (int64_t i = 0; i < data.sequences(); ++i) (void)data.sequence(i);
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace deepspeed::formats
