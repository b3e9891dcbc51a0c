// Checkpoints on a real disk: what a save leaves, what a reader accepts, and what the folder's owner sees.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "formats/safetensors.h"
#include "store/directory.h"
#include "store/small_save.h"

namespace deepspeed::store {
namespace {

using testing::error_text;
using testing::small_check;
using testing::small_save;

class Store : public ::testing::Test {
 protected:
  Store() : directory_((std::filesystem::temp_directory_path() / ("ds_store_" + std::to_string(::getpid()))).string()) {
    std::filesystem::remove_all(directory_);
  }
  ~Store() override { std::filesystem::remove_all(directory_); }

  std::vector<std::string> names(const std::string& below = "") { return disk().list(directory_ + below); }

  const std::string directory_;
};

TEST_F(Store, ASaveIsWholeAndReadableByOthers) {
  EXPECT_EQ(small_save(disk(), directory_ + "/new/deep", "a", 4, 3), directory_ + "/new/deep/a");
  EXPECT_EQ(small_check(disk(), directory_ + "/new/deep/a"), 4);
  EXPECT_EQ(names("/new/deep"), (std::vector<std::string>{".lock", "a", "latest"}));
  EXPECT_EQ(names("/new/deep/a"), (std::vector<std::string>{"CHECKSUMS", "index.sqlite", "rank_00000_of_00003.safetensors",
                                                            "rank_00001_of_00003.safetensors", "rank_00002_of_00003.safetensors"}));
  EXPECT_EQ(base::read_file(directory_ + "/new/deep/latest"), "a");
  // Any safetensors reader finds a parameter that lies in one piece under its own shape.
  const formats::SafetensorsFile file(directory_ + "/new/deep/a/rank_00000_of_00003.safetensors");
  EXPECT_EQ(file.at("value/mean").shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(file.at("moment/layer.weight@0").shape, (std::vector<int64_t>{8}));
}

TEST_F(Store, SavesOfTheSameStateAreTheSameBytes) {
  small_save(disk(), directory_ + "/one", "a", 4, 2);
  small_save(disk(), directory_ + "/other", "a", 4, 2);
  for (const auto& name : names("/one/a")) {
    EXPECT_EQ(base::read_file(directory_ + "/one/a/" + name), base::read_file(directory_ + "/other/a/" + name)) << name;
  }
}

TEST_F(Store, ATagIsReplacedInOneStepAndOldOnesGo) {
  for (int generation = 1; generation <= 5; ++generation) small_save(disk(), directory_, "g" + std::to_string(generation), generation, 2);
  small_save(disk(), directory_, "g5", 9, 1);
  EXPECT_EQ(small_check(disk(), directory_ + "/g5"), 9);
  small_save(disk(), directory_, "g6", 10, 2, /*keep=*/3);
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "g4", "g5", "g6", "latest"}));
  EXPECT_EQ(prune(disk(), directory_, 1), (std::vector<std::string>{"g4", "g5"}));
  EXPECT_EQ(small_check(disk(), directory_ + "/g6"), 10);
}

TEST_F(Store, PruningKeepsWhatLatestNamesWhatIsDamagedAndWhatIsForeign) {
  for (int generation = 1; generation <= 4; ++generation) small_save(disk(), directory_, "g" + std::to_string(generation), generation, 1);
  std::ofstream(directory_ + "/latest") << "g1\n";
  std::ofstream(directory_ + "/g2/CHECKSUMS") << "nonsense";
  std::filesystem::create_directories(directory_ + "/mine");
  std::ofstream(directory_ + "/mine/notes.txt") << "do not touch";
  EXPECT_EQ(prune(disk(), directory_, 1), (std::vector<std::string>{"g3"}));
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "g1", "g2", "g4", "latest", "mine"}));
}

TEST_F(Store, ASecondSaverIsRefusedAndAFailedOneLeavesNothing) {
  small_save(disk(), directory_, "a", 1, 1);
  {
    const SaveFolder first(disk(), directory_, "b");
    const std::string text = error_text([&] { SaveFolder(disk(), directory_, "c"); });
    EXPECT_NE(text.find("E3002 save: got another save at work in " + directory_), std::string::npos) << text;
    EXPECT_TRUE(base::exists(directory_ + "/.tmp.b"));
  }
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "a", "latest"}));
  EXPECT_EQ(small_save(disk(), directory_, "b", 2, 1), directory_ + "/b");
}

TEST_F(Store, ListsKindsStepsAndProblems) {
  small_save(disk(), directory_, "b", 20, 2);
  small_save(disk(), directory_, "a", 10, 2);
  small_save(disk(), directory_, "c", 30, 2);
  std::filesystem::remove(directory_ + "/c/rank_00001_of_00002.safetensors");
  std::filesystem::create_directories(directory_ + "/global_step7");
  std::ofstream(directory_ + "/global_step7/zero_pp_rank_0_mp_rank_00_optim_states.pt") << "x";
  const auto all = list_checkpoints(disk(), directory_);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].tag, "c");
  EXPECT_NE(all[0].problem.find("rank_00001_of_00002.safetensors: missing"), std::string::npos) << all[0].problem;
  EXPECT_EQ(all[1].tag, "global_step7");
  EXPECT_EQ(all[1].kind, Kind::kZero);
  EXPECT_EQ(all[1].global_steps, 7);
  EXPECT_EQ(all[2].tag, "a");
  EXPECT_EQ(all[3].tag, "b");
  EXPECT_EQ(all[3].global_steps, 20);
  EXPECT_EQ(all[3].world_size, 2);
}

TEST_F(Store, ShardsOfAnotherSaveAreNamed) {
  small_save(disk(), directory_, "a", 1, 2);
  small_save(disk(), directory_, "b", 2, 2);
  // One of another save, of the same name and size.
  const std::string name = "/rank_00001_of_00002.safetensors";
  std::filesystem::copy_file(directory_ + "/a" + name, directory_ + "/b" + name, std::filesystem::copy_options::overwrite_existing);
  std::string text = error_text([&] { small_check(disk(), directory_ + "/b"); });
  EXPECT_NE(text.find("E3001"), std::string::npos) << text;
  EXPECT_NE(text.find("b" + name + ": bytes 0 to "), std::string::npos) << text;
  // One too many.
  std::filesystem::copy_file(directory_ + "/a" + name, directory_ + "/a/rank_00002_of_00003.safetensors");
  text = error_text([&] { small_check(disk(), directory_ + "/a"); });
  EXPECT_NE(text.find("rank_00002_of_00003.safetensors: not a file of this checkpoint"), std::string::npos) << text;
}

TEST_F(Store, BadTagsAreRefused) {
  for (const std::string tag : {"", ".hidden", "a/b", "latest", "line\nbreak"}) {
    EXPECT_NE(error_text([&] { SaveFolder(disk(), directory_, tag); }).find("E1300"), std::string::npos) << tag;
  }
  EXPECT_FALSE(base::exists(directory_));
}

TEST_F(Store, MissingTagsAreAnErrorThatListsThoseThere) {
  small_save(disk(), directory_, "a", 1, 1);
  const std::string text = error_text([&] { open_source(disk(), directory_, "z"); });
  EXPECT_NE(text.find("E3000"), std::string::npos) << text;
  EXPECT_NE(text.find("one of those in " + directory_ + ": a"), std::string::npos) << text;
}

}  // namespace
}  // namespace deepspeed::store
