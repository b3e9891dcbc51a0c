// Checkpoints of the real DeepSpeed: plain and universal ones of a run hold the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "deepspeed/error.h"
#include "store/source.h"

namespace deepspeed::store {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(DEEPSPEED_SOURCE_DIR) / "tests" / "golden" / "checkpoints";

int64_t elements(const SavedParameter& parameter) {
  int64_t count = 1;
  for (const int64_t size : parameter.shape) count *= size;
  return count;
}

TEST(DeepSpeedSource, PlainAndUniversalHoldTheSameValues) {
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    SCOPED_TRACE(entry.path().filename().string());
    const auto plain = open_deepspeed((entry.path() / "zero").string(), "step"),
               universal = open_deepspeed((entry.path() / "universal").string(), "step");
    EXPECT_EQ(plain->state_names(), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
    EXPECT_EQ(universal->state_names(), plain->state_names());
    EXPECT_EQ(universal->parameters().size(), plain->parameters().size());
    EXPECT_EQ(nlohmann::json::parse(universal->run_json())["optimizer_steps"], nlohmann::json::parse(plain->run_json())["optimizer_steps"]);
    for (const auto& [name, parameter] : plain->parameters()) {
      SCOPED_TRACE(name);
      ASSERT_TRUE(universal->parameters().count(name));
      EXPECT_EQ(universal->parameters().at(name).shape, parameter.shape);
      EXPECT_TRUE(parameter.trained);
      const int64_t count = elements(parameter);
      for (const char* kind : {"", "exp_avg", "exp_avg_sq"}) {
        const auto read = [&](Source& source, int64_t begin, int64_t size, float* out) {
          return *kind ? source.read_state(name, {"another", kind}, begin, size, out) : source.read_values(name, begin, size, out);
        };
        std::vector<float> a(static_cast<size_t>(count)), b(static_cast<size_t>(count)), part(5);
        read(*plain, 0, count, a.data());
        read(*universal, 0, count, b.data());
        EXPECT_EQ(a, b) << kind;
        // Any part is that part of the whole, across the seams between ranks too.
        for (int64_t begin = 0; begin + 5 <= count; begin += std::max<int64_t>(1, count / 7)) {
          read(*plain, begin, 5, part.data());
          EXPECT_TRUE(std::equal(part.begin(), part.end(), a.begin() + begin)) << kind << " " << begin;
        }
      }
    }
  }
}

TEST(DeepSpeedSource, RunStateAndClientStateComeAlong) {
  const auto source = open_deepspeed((kGolden / "stage2-fp16" / "zero").string(), "step");
  const auto run = nlohmann::json::parse(source->run_json());
  EXPECT_EQ(run["global_steps"], 7);
  EXPECT_EQ(run["skipped_steps"], 5);
  EXPECT_EQ(run["optimizer_steps"], 2);
  EXPECT_GT(run["loss_scale"]["scale"], 1.0);
  EXPECT_EQ(run["rates"].size(), 1u);
  const auto client = nlohmann::json::parse(source->client_json());
  EXPECT_EQ(client, (nlohmann::json{{"epoch", 3}, {"note", "scale in motion"}}));
  EXPECT_EQ(source->world_size(), 2);
}

TEST(DeepSpeedSource, AFolderThatIsNoCheckpointIsTold) {
  try {
    open_deepspeed((kGolden / "stage2-fp16").string(), "zero");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointMissing);
  }
}

}  // namespace
}  // namespace deepspeed::store
