// The plumbing around the script, with a shell script in its place: it writes a ready token file and a line for each call.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "deepspeed/data.h"
#include "formats/indexed_dataset.h"

namespace deepspeed {
namespace {

namespace fs = std::filesystem;

class Tokenization : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tokenization test " + std::to_string(::getpid()));  // with spaces: no shell splits it
    fs::create_directories(folder_ / "model");
    write("model/tokenizer.json", "{}");
    write("a.txt", "text");
    formats::IndexedDatasetWriter writer(path("ready"), formats::TokenType::kI32);
    writer.add(std::vector<int64_t>{5, 6, 2});
    writer.end_document();
    writer.finish(false);
    ::setenv("DEEPSPEED_PYTHON", "/bin/sh", 1);
    ::setenv("DEEPSPEED_SCRIPTS_DIR", folder_.c_str(), 1);
    ::setenv("TEST_FOLDER", folder_.c_str(), 1);
    script(R"(echo "$@" >> "$TEST_FOLDER/calls"
cp "$TEST_FOLDER/ready.bin" "$4.bin"; cp "$TEST_FOLDER/ready.idx" "$4.idx"; echo '{"eos_token_id": 2}' > "$4.meta.json")");
  }
  void TearDown() override {
    fs::remove_all(folder_);
    ::unsetenv("DEEPSPEED_PYTHON");
    ::unsetenv("DEEPSPEED_SCRIPTS_DIR");
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  void script(const std::string& body) const { write("tokenize_text.py", body); }
  std::vector<std::string> calls() const {
    std::ifstream in(folder_ / "calls");
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  std::string ensure(const std::vector<std::string>& paths) const { return ensure_tokenized(paths, path("model"), path("cache")); }
  ErrorCode code_of(const std::vector<std::string>& paths) const {
    try {
      ensure(paths);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kInternal;
  }

  fs::path folder_;
};

TEST_F(Tokenization, RunsOnceAndIsKept) {
  const std::string prefix = ensure({path("a.txt")});
  EXPECT_EQ(formats::IndexedDataset(prefix).tokens(), 3);
  EXPECT_EQ(ensure({path("a.txt")}), prefix);
  ASSERT_EQ(calls().size(), 1u);
  EXPECT_EQ(calls()[0], "--tokenizer " + path("model/tokenizer.json") + " --output " + prefix + " -- " + path("a.txt"));
}

TEST_F(Tokenization, RunsAgainWhenTextOrTokenizerChanged) {
  const std::string first = ensure({path("a.txt")});
  write("a.txt", "other text");
  const std::string second = ensure({path("a.txt")});
  EXPECT_NE(first, second);
  write("model/tokenizer.json", "{ }");
  EXPECT_NE(ensure({path("a.txt")}), second);
  write("b.txt", "more");
  EXPECT_NE(ensure({path("a.txt"), path("b.txt")}), ensure({path("a.txt")}));
  EXPECT_EQ(calls().size(), 4u);
}

TEST_F(Tokenization, ATokenFileIsUsedAsItIs) {
  EXPECT_EQ(ensure({path("ready")}), path("ready"));
  EXPECT_EQ(ensure({path("ready.bin")}), path("ready"));
  EXPECT_EQ(ensure({path("ready.idx")}), path("ready"));
  EXPECT_TRUE(calls().empty());
}

TEST_F(Tokenization, FailuresAreNamed) {
  EXPECT_EQ(code_of({}), ErrorCode::kUsage);
  EXPECT_EQ(code_of({path("nowhere.txt")}), ErrorCode::kFile);
  script("exit 1");
  EXPECT_EQ(code_of({path("a.txt")}), ErrorCode::kDataFormat);
  script("exit 4");
  EXPECT_EQ(code_of({path("a.txt")}), ErrorCode::kEnvironment);
  script("exit 0");  // but no files
  EXPECT_EQ(code_of({path("a.txt")}), ErrorCode::kDataFormat);
  ::setenv("DEEPSPEED_PYTHON", "/no/such/interpreter", 1);
  EXPECT_EQ(code_of({path("a.txt")}), ErrorCode::kEnvironment);
  ::setenv("DEEPSPEED_SCRIPTS_DIR", "/no/such/folder", 1);
  EXPECT_EQ(code_of({path("a.txt")}), ErrorCode::kEnvironment);
  fs::remove(folder_ / "model/tokenizer.json");
  EXPECT_EQ(code_of({path("a.txt")}), ErrorCode::kFile);
}

TEST_F(Tokenization, APromptHasNoEndToken) {
  EXPECT_EQ(encode_prompt("text", path("model")), (std::vector<int64_t>{5, 6}));
  EXPECT_TRUE(encode_prompt("", path("model")).empty());
}

}  // namespace
}  // namespace deepspeed
