// Save and load through the engine: exact resume, other world sizes, damage.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "base/files.h"
#include "checkpoint/small_runs.h"

namespace deepspeed {
namespace {

using testing::config_json;
using testing::error_of;
using testing::fresh_directory;
using testing::make;
using testing::Ranks;
using testing::rows;
using testing::train_step;

class Stages : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(Stages, ResumeContinuesBitForBit) {
  const auto [stage, bf16] = GetParam();
  const std::string more = bf16 ? R"(, "bf16": {"enabled": true})" : "";
  const std::string directory = fresh_directory("resume" + std::to_string(stage) + (bf16 ? "b" : "f"));
  std::mutex mutex;
  std::map<std::string, at::Tensor> expected;
  std::vector<double> expected_losses;
  const auto input = [&](int step) { return bf16 ? rows(step, 0).to(at::kBFloat16) : rows(step, 0); };
  const auto go = [&](Ranks& r, int step) {
    auto loss = r.net->forward(input(step));
    r.engine->backward(loss);
    r.engine->step();
    return loss.item<double>();
  };
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, stage, more);
    for (int step = 0; step < 3; ++step) go(ranks, step);
    ranks.engine->save_checkpoint(directory, "", R"({"epoch": 4})");
    std::vector<double> losses;
    for (int step = 3; step < 6; ++step) losses.push_back(go(ranks, step));
    auto values = ranks.engine->full_parameters();
    std::lock_guard lock(mutex);
    if (communicator->rank() == 0) expected = values, expected_losses = losses;
  });
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, stage, more);
    go(ranks, 9);  // a state that must be replaced completely
    const auto loaded = ranks.engine->load_checkpoint(directory);
    EXPECT_NE(loaded.client_state.find("\"epoch\": 4"), std::string::npos) << loaded.client_state;
    EXPECT_EQ(ranks.engine->global_steps(), 3);
    std::vector<double> losses;
    for (int step = 3; step < 6; ++step) losses.push_back(go(ranks, step));
    auto values = ranks.engine->full_parameters();
    if (communicator->rank() != 0) return;
    EXPECT_EQ(losses, expected_losses);
    for (const auto& [name, value] : expected) EXPECT_TRUE(torch::equal(value, values.at(name))) << name;
  });
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(All, Stages, ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Bool()));

TEST(Checkpoint, LoadsAtAnyWorldSizeAndStage) {
  const std::string directory = fresh_directory("worlds");
  std::map<std::string, at::Tensor> saved;
  std::mutex mutex;
  run_ranks_as_threads(3, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, 3);
    for (int step = 0; step < 3; ++step) train_step(ranks, step);
    ranks.engine->save_checkpoint(directory, "three");
    auto values = ranks.engine->full_parameters();
    std::lock_guard lock(mutex);
    if (communicator->rank() == 0) saved = values;
  });
  double first_loss = 0;
  for (const int world : {1, 2, 4}) {
    for (const int stage : {0, 1, 3}) {
      run_ranks_as_threads(world, [&](std::shared_ptr<Communicator> communicator) {
        auto ranks = make(communicator, stage);
        ranks.engine->load_checkpoint(directory, "three");
        auto values = ranks.engine->full_parameters();
        train_step(ranks, 3);
        const double loss = train_step(ranks, 4);  // depends on moments and schedule
        if (communicator->rank() != 0) return;
        for (const auto& [name, value] : saved) EXPECT_TRUE(torch::equal(value, values.at(name))) << name;
        if (first_loss == 0) first_loss = loss;
        EXPECT_NEAR(loss, first_loss, 1e-6);
      });
    }
  }
  std::filesystem::remove_all(directory);
}

TEST(Checkpoint, MissingDamagedAndForeignAreNamed) {
  const std::string directory = fresh_directory("bad");
  run_ranks_as_threads(1, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, 3);
    auto [code, text] = error_of([&] { ranks.engine->load_checkpoint(directory); });
    EXPECT_EQ(code, ErrorCode::kCheckpointMissing) << text;
    ranks.engine->save_checkpoint(directory, "a");
    std::tie(code, text) = error_of([&] { ranks.engine->load_checkpoint(directory, "b"); });
    EXPECT_EQ(code, ErrorCode::kCheckpointMissing) << text;
    // A shortened data file.
    const std::string file = directory + "/a/rank_00000_of_00001.safetensors";
    const auto size = std::filesystem::file_size(file);
    std::filesystem::resize_file(file, size - 10);
    std::tie(code, text) = error_of([&] { ranks.engine->load_checkpoint(directory, "a"); });
    EXPECT_EQ(code, ErrorCode::kCheckpointDamaged) << text;
    EXPECT_NE(text.find("rank_00000"), std::string::npos) << text;
    // A damaged index.
    ranks.engine->save_checkpoint(directory, "a");
    std::ofstream(directory + "/a/index.sqlite", std::ios::app) << "x";
    std::tie(code, text) = error_of([&] { ranks.engine->load_checkpoint(directory, "a"); });
    EXPECT_EQ(code, ErrorCode::kCheckpointDamaged) << text;
    EXPECT_NE(text.find("index.sqlite"), std::string::npos) << text;
    // Another model.
    ranks.engine->save_checkpoint(directory, "c");
    torch::nn::Linear other(3, 3);
    EngineOptions options;
    options.config_json = config_json({});
    options.communicator = communicator;
    auto engine = initialize(other.ptr(), options);
    std::tie(code, text) = error_of([&] { engine->load_checkpoint(directory, "c"); });
    EXPECT_EQ(code, ErrorCode::kCheckpointMismatch) << text;
    EXPECT_NE(text.find("layers_0_up.bias is not in the model"), std::string::npos) << text;
  });
  std::filesystem::remove_all(directory);
}

TEST(Checkpoint, FailedSaveLeavesTheOldOneAndNothingElse) {
  const std::string directory = fresh_directory("failed");
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, 2);
    ranks.engine->save_checkpoint(directory, "good");
    const auto [usage_code, usage_text] = error_of([&] { ranks.engine->save_checkpoint("", "x"); });
    EXPECT_NE(usage_text.find("empty directory"), std::string::npos);
    // A file where a folder has to be makes the save fail, on all ranks.
    if (communicator->rank() == 0) {
      std::ofstream(directory + "/file") << "x";
    }
    communicator->barrier("file");
    const auto [code, text] = error_of([&] { ranks.engine->save_checkpoint(directory + "/file/sub", "x"); });
    EXPECT_EQ(code, ErrorCode::kCheckpointWrite) << text;
    communicator->barrier("failed");
    EXPECT_EQ(ranks.engine->load_checkpoint(directory).path, directory + "/good");
    // Leftovers of a killed save disappear with the next one.
    if (communicator->rank() == 0) std::filesystem::create_directories(directory + "/.tmp.killed");
    communicator->barrier("leftover");
    ranks.engine->save_checkpoint(directory, "good");
    EXPECT_FALSE(base::exists(directory + "/.tmp.killed"));
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace deepspeed
