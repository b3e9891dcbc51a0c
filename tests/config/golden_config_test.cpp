// Replays the recorded answers of DeepSpeed to configuration files.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "deepspeed/config.h"

namespace deepspeed {
namespace {

using nlohmann::json;
using Kind = ConfigIssue::Kind;

json load(const std::string& name) {
  std::ifstream file(DEEPSPEED_SOURCE_DIR "/tests/golden/units/config/" + name + ".json");
  return json::parse(file);
}

bool only_not_built(const std::vector<ConfigIssue>& issues) {
  return std::all_of(issues.begin(), issues.end(), [](const auto& issue) { return issue.kind == Kind::kNotBuilt; });
}

std::string report(const ConfigResult& result) {
  std::string text;
  for (const auto& issue : result.issues) text += issue.path + " (" + to_string(issue.kind) + "): " + issue.message + "\n";
  for (const auto& note : result.config.notes) text += "note: " + note + "\n";
  return text;
}

// Dialect of unquoted keys and single quotes, which this project does not read.
const std::set<std::string> kOtherDialect = {"unquoted-keys", "no-braces", "single-quotes", "multiline-string"};

// The reference takes these, with a wish that they be named; here an unknown key is an error everywhere.
const std::set<std::string> kUnknownIsAnError = {
    "unknown-top-level", "unknown-top-level-scalar", "optimizer-unknown-key",
    "actckpt-unknown",   "autocast-unknown-key",     "data-types-unknown-key",
    "pipeline-keys",     "checkpoint-unknown",       "timers-unknown-outer",
};

// Answered otherwise on purpose; each has a test of its own in config_test.cpp.
const std::set<std::string> kOwnAnswer = {
    "ds-sequence-parallel-size",     // 2 ranks per sequence in a world of 1: refused, as the proper spelling is
    "clip-auto",                     // "auto" stands for the default, with a note
    "optimizer-lr-auto",             // the same
    "optimizer-max-grad-norm-fp16",  // refused with and without fp16
    "elastic",                       // elasticity, which would choose the batch, is not built
    "elastic-ignore-batch",          // the same
};

// `key`: dotted path at fault, several joined by ",", "batch", or null for the text as a whole.
bool names_key(const std::string& text, const json& key) {
  if (key.is_null() || key == "batch") return true;
  std::string paths = key.get<std::string>();
  while (!paths.empty()) {
    const size_t comma = paths.find(',');
    const std::string path = paths.substr(0, comma);
    if (path == "batch" || text.find(path.substr(path.rfind('.') + 1)) != std::string::npos) return true;
    paths = comma == std::string::npos ? "" : paths.substr(comma + 1);
  }
  return false;
}

void expect_batch(const json& effective, const Config& config) {
  EXPECT_EQ(config.train_batch_size, effective.at("train_batch_size").get<double>());
  EXPECT_EQ(config.train_micro_batch_size_per_gpu, effective.at("train_micro_batch_size_per_gpu").get<double>());
  EXPECT_EQ(config.gradient_accumulation_steps, effective.at("gradient_accumulation_steps").get<double>());
  EXPECT_EQ(config.data_parallel_size, effective.at("dp_world_size").get<double>());
}

void expect_fields(const json& effective, const Config& config) {
  const auto same = [&](const char* name, const json& value) {
    if (effective.contains(name)) {
      EXPECT_EQ(effective.at(name), value) << name;
    }
  };
  same("zero_optimization.stage", config.zero.stage);
  same("zero_optimization.reduce_bucket_size", config.zero.reduce_bucket_size);
  same("zero_optimization.allgather_bucket_size", config.zero.allgather_bucket_size);
  same("zero_optimization.prefetch_bucket_size", config.zero.prefetch_bucket_size);
  same("zero_optimization.param_persistence_threshold", config.zero.param_persistence_threshold);
  same("zero_optimization.max_live_parameters", config.zero.max_live_parameters);
  same("zero_optimization.max_reuse_distance", config.zero.max_reuse_distance);
  same("zero_optimization.sub_group_size", config.zero.sub_group_size);
  same("zero_optimization.round_robin_gradients", config.zero.round_robin_gradients);
  same("zero_optimization.ignore_unused_parameters", config.zero.ignore_unused_parameters);
  same("zero_optimization.gather_16bit_weights_on_model_save", config.zero.gather_16bit_weights_on_model_save);
  same("bf16.enabled", config.bf16.enabled);
  same("bf16.check_grad_overflow", config.bf16.check_grad_overflow);
  same("prescale_gradients", config.prescale_gradients);
  same("gradient_predivide_factor", config.gradient_predivide_factor);
  same("wall_clock_breakdown", config.wall_clock_breakdown);
  same("dataloader_drop_last", config.dataloader_drop_last);
  same("optimizer.type", config.optimizer.type);
  same("scheduler.type", config.scheduler.type);
}

void replay(const json& entry) {
  const std::string id = entry.at("id").get<std::string>();
  const auto& expect = entry.at("expect");
  const auto result = check_config(entry.at("text").get<std::string>(), entry.at("world").get<int64_t>());
  const std::string text = report(result);
  const std::string wish = entry.contains("better") ? entry.at("better").at("action").get<std::string>() : "";
  const json wished_key = entry.contains("better") && entry.at("better").contains("key") ? entry.at("better").at("key") : json();
  if (kUnknownIsAnError.contains(id)) {
    EXPECT_FALSE(result.issues.empty());
    EXPECT_TRUE(names_key(text, wished_key)) << text;
  } else if (!expect.at("accepted").get<bool>() && wish != "accept" && wish != "warn") {
    EXPECT_FALSE(result.issues.empty()) << "accepted, although the reference refuses " << expect.at("error");
    EXPECT_TRUE(names_key(text, expect.at("error").at("key"))) << text;
  } else if (wish == "reject") {
    EXPECT_FALSE(result.issues.empty()) << entry.at("better").at("why");
    EXPECT_TRUE(names_key(text, wished_key)) << text;
  } else {
    EXPECT_TRUE(only_not_built(result.issues)) << text;
    if (wish == "warn") {
      EXPECT_TRUE(names_key(text, wished_key)) << "no word about " << wished_key << "\n" << text;
    }
    if (expect.at("accepted").get<bool>() && id != "seq-parallel-file") expect_batch(expect.at("effective"), result.config);
    if (result.issues.empty() && expect.at("accepted").get<bool>()) expect_fields(expect.at("effective"), result.config);
  }
}

void replay_file(const std::string& name) {
  const json golden = load(name);
  ASSERT_FALSE(golden.at("cases").empty());
  for (const auto& entry : golden.at("cases")) {
    SCOPED_TRACE(entry.at("id").get<std::string>() + ": " + entry.at("text").get<std::string>());
    const auto id = entry.at("id").get<std::string>();
    if (!kOtherDialect.contains(id) && !kOwnAnswer.contains(id)) replay(entry);
  }
}

TEST(GoldenConfig, Syntax) { replay_file("syntax"); }
TEST(GoldenConfig, Batch) { replay_file("batch"); }
TEST(GoldenConfig, Precision) { replay_file("precision"); }
TEST(GoldenConfig, Zero) { replay_file("zero"); }
TEST(GoldenConfig, Sections) { replay_file("sections"); }

}  // namespace
}  // namespace deepspeed
