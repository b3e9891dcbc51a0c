// One checkpoint of each format version is kept in tests/backward_compat, with the parameters that were saved and the losses that followed. They load for ever.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "checkpoint/small_runs.h"
#include "store/directory.h"
#include "store/migrate.h"

namespace deepspeed {
namespace {

using testing::fresh_directory;
using testing::make;
using testing::train_step;
using Json = nlohmann::ordered_json;

std::string kept(const std::string& version) { return std::string(DEEPSPEED_SOURCE_DIR) + "/tests/backward_compat/" + version; }

void expect_continues(const std::string& directory, const std::string& version) {
  SCOPED_TRACE(directory);
  const Json expected = Json::parse(base::read_file(kept(version) + "/expected.json"));
  for (const int world : {2, 1, 3}) {
    for (const int stage : {0, 3}) {
      run_ranks_as_threads(world, [&](std::shared_ptr<Communicator> communicator) {
        auto ranks = make(communicator, stage);
        const auto loaded = ranks.engine->load_checkpoint(directory);
        EXPECT_EQ(Json::parse(loaded.client_state), Json({{"epoch", 4}}));
        EXPECT_EQ(ranks.engine->global_steps(), 3);
        const auto values = ranks.engine->full_parameters();
        std::vector<double> losses;
        for (int step = 3; step < 6; ++step) losses.push_back(train_step(ranks, step));
        if (communicator->rank() != 0) return;
        ASSERT_EQ(values.size(), expected["parameters"].size());
        for (const auto& [name, value] : values) {
          const auto flat = value.flatten();
          const std::vector<float> got(flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
          EXPECT_EQ(got, expected["parameters"][name].get<std::vector<float>>()) << name;
        }
        for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected["losses"][i].get<double>(), 1e-6) << i;
      });
    }
  }
}

class BackwardCompat : public ::testing::TestWithParam<std::string> {};

TEST_P(BackwardCompat, LoadsAndContinues) { expect_continues(kept(GetParam()), GetParam()); }

TEST_P(BackwardCompat, MigratesAndContinues) {
  const std::string directory = fresh_directory("migrated");
  auto& files = store::disk();
  const auto source = store::open_source(files, kept(GetParam()), "global_step3");
  const auto planned = store::plan_migration(*source, directory, "global_step3", {});
  EXPECT_FALSE(base::exists(directory));
  store::MigrateOptions options;
  options.max_file_bytes = 1000;  // several files
  uint64_t last = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    last = done;
  };
  const auto migrated = store::migrate(files, *source, directory, "global_step3", options);
  EXPECT_EQ(migrated.bytes, planned.bytes);
  EXPECT_GT(migrated.files, 3u);
  EXPECT_GT(last, 0u);
  EXPECT_EQ(store::kind_of_checkpoint(files, directory + "/global_step3"), store::Kind::kNative);
  expect_continues(directory, GetParam());
  EXPECT_THROW(store::migrate(files, *source, directory, "global_step3", options), Error);  // it exists
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Versions, BackwardCompat, ::testing::Values("v1", "v2"), [](const auto& info) { return info.param; });

// Before there were other optimizers than Adam the index had no names of states.
TEST(BackwardCompatV1, FilesWithoutNamesHoldAdamsMoments) {
  const std::string directory = fresh_directory("nameless");
  std::filesystem::copy(kept("v1"), directory, std::filesystem::copy_options::recursive);
  auto index = Json::parse(base::read_file(directory + "/global_step3/index.json"));
  EXPECT_EQ(index.at("states"), Json({"moment", "variance"}));
  index.erase("states");
  std::ofstream(directory + "/global_step3/index.json") << index.dump();
  expect_continues(directory, "v1");
  std::filesystem::remove_all(directory);
}

TEST(BackwardCompatV1, DamageIsNamed) {
  const std::string directory = fresh_directory("damaged_v1");
  std::filesystem::copy(kept("v1"), directory, std::filesystem::copy_options::recursive);
  std::ofstream(directory + "/global_step3/index.json") << "{\"format\": \"deepspeed-native-checkpoint\", \"version\": 9}";
  const auto [code, text] = testing::error_of([&] { store::open_source(store::disk(), directory, "global_step3"); });
  EXPECT_EQ(code, ErrorCode::kCheckpointDamaged) << text;
  EXPECT_NE(text.find("version: got 9, allowed 1"), std::string::npos) << text;
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace deepspeed
