// Damage is found before anything is overwritten; an older checkpoint is taken only when asked for.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "base/files.h"
#include "checkpoint/small_runs.h"

namespace deepspeed {
namespace {

using testing::error_of;
using testing::fresh_directory;
using testing::make;
using testing::train_step;

void flip_byte(const std::string& path, std::streamoff from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const auto at = file.tellg();
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(at);
  file.put(byte);
}

class Fallback : public ::testing::TestWithParam<int> {};

TEST_P(Fallback, DamageIsNamedNothingIsOverwrittenAndTheNewestWholeOneIsTakenOnRequest) {
  const int stage = GetParam();
  const std::string directory = fresh_directory("fallback" + std::to_string(stage));
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, stage);
    std::map<std::string, at::Tensor> second;
    for (int step = 0; step < 4; ++step) {
      train_step(ranks, step);
      ranks.engine->save_checkpoint(directory);
      if (step == 1) second = ranks.engine->full_parameters();
    }
    if (communicator->rank() == 0) {
      // The newest: a byte of data, which only one rank reads. The one before: a file too short.
      flip_byte(directory + "/global_step4/rank_00001_of_00002.safetensors", 6000);
      std::filesystem::resize_file(directory + "/global_step3/rank_00000_of_00002.safetensors", 100);
    }
    communicator->barrier("damaged");
    const auto before = ranks.engine->full_parameters();
    auto [code, text] = error_of([&] { ranks.engine->load_checkpoint(directory); });
    EXPECT_EQ(code, ErrorCode::kCheckpointDamaged) << text;
    EXPECT_NE(text.find("global_step4/rank_00001_of_00002.safetensors: bytes 0 to "), std::string::npos) << text;
    const auto after = ranks.engine->full_parameters();
    for (const auto& [name, value] : before) EXPECT_TRUE(torch::equal(value, after.at(name))) << name;
    EXPECT_EQ(ranks.engine->global_steps(), 4);

    const auto loaded = ranks.engine->load_checkpoint(directory, "", {.fallback = true});
    EXPECT_EQ(loaded.path, directory + "/global_step2");
    EXPECT_NE(loaded.damage.find("global_step4"), std::string::npos) << loaded.damage;
    EXPECT_EQ(ranks.engine->global_steps(), 2);
    const auto values = ranks.engine->full_parameters();
    for (const auto& [name, value] : second) EXPECT_TRUE(torch::equal(value, values.at(name))) << name;
    // With nothing wrong it changes nothing.
    EXPECT_EQ(ranks.engine->load_checkpoint(directory, "global_step1", {.fallback = true}).damage, "");
  });
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Stages, Fallback, ::testing::Values(0, 2, 3));

TEST(MissingCheckpoints, AreErrorsThatSayWhatIsThere) {
  const std::string directory = fresh_directory("missing");
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, 1);
    auto [code, text] = error_of([&] { ranks.engine->load_checkpoint(directory, "", {.fallback = true}); });
    EXPECT_EQ(code, ErrorCode::kCheckpointMissing) << text;
    train_step(ranks, 0);
    ranks.engine->save_checkpoint(directory, "one");
    ranks.engine->save_checkpoint(directory, "two");
    std::tie(code, text) = error_of([&] { ranks.engine->load_checkpoint(directory, "three"); });
    EXPECT_EQ(code, ErrorCode::kCheckpointMissing) << text;
    EXPECT_NE(text.find("one of those in " + directory + ": one, two"), std::string::npos) << text;
    communicator->barrier("seen");
    if (communicator->rank() == 0) std::filesystem::remove(directory + "/latest");
    communicator->barrier("no latest");
    std::tie(code, text) = error_of([&] { ranks.engine->load_checkpoint(directory); });
    EXPECT_EQ(code, ErrorCode::kCheckpointMissing) << text;
    EXPECT_NE(text.find("got no " + directory + "/latest"), std::string::npos) << text;
    EXPECT_NE(ranks.engine->load_checkpoint(directory, "", {.fallback = true}).path.find(directory), std::string::npos);
    communicator->barrier("seen again");
    if (communicator->rank() == 0) std::ofstream(directory + "/latest") << "gone";
    communicator->barrier("wrong latest");
    std::tie(code, text) = error_of([&] { ranks.engine->load_checkpoint(directory); });
    EXPECT_EQ(code, ErrorCode::kCheckpointMissing) << text;
    EXPECT_NE(text.find("/gone"), std::string::npos) << text;
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace deepspeed
