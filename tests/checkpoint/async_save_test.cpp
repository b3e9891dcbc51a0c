// Saves in the background: the state of the call, errors by name, nothing left over.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/files.h"
#include "checkpoint/small_runs.h"
#include "engine/engine_impl.h"
#include "store/directory.h"

namespace deepspeed {
namespace {

using testing::error_of;
using testing::fresh_directory;
using testing::make;
using testing::train_step;

SaveOptions in_background(int keep_last = 0) {
  SaveOptions options;
  options.async = true;
  options.keep_last = keep_last;
  return options;
}

class AsyncSave : public ::testing::TestWithParam<int> {};

TEST_P(AsyncSave, HoldsTheStateOfTheCallBitForBit) {
  const int stage = GetParam();
  const std::string directory = fresh_directory("async" + std::to_string(stage));
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, stage);
    for (int step = 0; step < 3; ++step) train_step(ranks, step);
    const auto values = ranks.engine->full_parameters();
    const std::string path = ranks.engine->save_checkpoint(directory, "", "{\"x\": 1}", in_background());
    std::vector<double> losses;
    for (int step = 3; step < 9; ++step) losses.push_back(train_step(ranks, step));  // beside the save
    ranks.engine->wait_for_checkpoint();
    EXPECT_EQ(path, directory + "/global_step3");
    EXPECT_EQ(base::exists(path + "/index.sqlite"), true);

    auto other = make(communicator, stage);
    other.engine->load_checkpoint(directory);
    EXPECT_EQ(other.engine->global_steps(), 3);
    const auto back = other.engine->full_parameters();
    for (const auto& [name, value] : values) EXPECT_TRUE(torch::equal(value, back.at(name))) << name;
    for (int step = 3; step < 9; ++step) EXPECT_EQ(train_step(other, step), losses[static_cast<size_t>(step) - 3]) << step;
  });
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Stages, AsyncSave, ::testing::Values(0, 1, 2, 3));

TEST(AsyncSaves, ManyInARowKeepTheNewestAndEndWithTheEngine) {
  const std::string directory = fresh_directory("async_many");
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, 3);
    for (int step = 0; step < 8; ++step) {
      train_step(ranks, step);
      ranks.engine->save_checkpoint(directory, "", "{}", in_background(/*keep_last=*/2));
    }
    // The last one may still be under way here: the engine's end waits for it.
  });
  std::vector<std::string> tags;
  for (const auto& listed : store::list_checkpoints(store::disk(), directory)) {
    EXPECT_EQ(listed.problem, "");
    tags.push_back(listed.tag);
  }
  EXPECT_EQ(tags, (std::vector<std::string>{"global_step7", "global_step8"}));
  EXPECT_EQ(store::latest_tag(store::disk(), directory), "global_step8");
  std::filesystem::remove_all(directory);
}

// Nothing can be saved below a file.
std::string unusable(const std::string& directory, Communicator& communicator) {
  if (communicator.rank() == 0) {
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/file") << "x";
  }
  communicator.barrier("file");
  return directory + "/file/sub";
}

TEST(AsyncSaves, AnErrorComesOutOfTheNextStepWhichIsComplete) {
  const std::string directory = fresh_directory("async_step");
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, 2), twin = make(communicator, 2);
    train_step(ranks, 0);
    train_step(twin, 0);
    ranks.engine->save_checkpoint(unusable(directory, *communicator), "x", "{}", in_background());
    while (!ranks.engine->impl().saver().failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    communicator->barrier("both know");
    const auto [code, text] = error_of([&] { train_step(ranks, 1); });
    EXPECT_EQ(code, ErrorCode::kCheckpointWrite) << text;
    EXPECT_NE(text.find("the save in the background failed"), std::string::npos) << text;
    EXPECT_NE(text.find(directory + "/file"), std::string::npos) << text;
    train_step(twin, 1);
    EXPECT_EQ(ranks.engine->global_steps(), 2);
    EXPECT_EQ(train_step(ranks, 2), train_step(twin, 2));  // it was said once
    ranks.engine->save_checkpoint(directory + "/good", "x", "{}", in_background());
    ranks.engine->wait_for_checkpoint();
  });
  EXPECT_TRUE(base::exists(directory + "/good/x/index.sqlite"));
  std::filesystem::remove_all(directory);
}

TEST(AsyncSaves, AnErrorComesOutOfTheNextSaveAndOfWaiting) {
  const std::string directory = fresh_directory("async_wait");
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> communicator) {
    auto ranks = make(communicator, 1);
    train_step(ranks, 0);
    const std::string bad = unusable(directory, *communicator);
    ranks.engine->save_checkpoint(bad, "x", "{}", in_background());
    auto [code, text] = error_of([&] { ranks.engine->save_checkpoint(directory, "y"); });
    EXPECT_EQ(code, ErrorCode::kCheckpointWrite) << text;
    EXPECT_FALSE(base::exists(directory + "/y"));
    ranks.engine->save_checkpoint(bad, "x", "{}", in_background());
    std::tie(code, text) = error_of([&] { ranks.engine->wait_for_checkpoint(); });
    EXPECT_EQ(code, ErrorCode::kCheckpointWrite) << text;
    ranks.engine->wait_for_checkpoint();
    // What is wrong with the call itself is said at once.
    std::tie(code, text) = error_of([&] { ranks.engine->save_checkpoint(directory, "a/b", "{}", in_background()); });
    EXPECT_EQ(code, ErrorCode::kUsage) << text;
  });
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace deepspeed
