#include "config/schema.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "config/reference.h"
#include "config/value.h"

namespace deepspeed::config {
namespace {

using nlohmann::json;

TEST(Schema, EveryRowStandsOnceInsideASectionAndItsDefaultPassesItsOwnCheck) {
  std::set<std::string_view> paths;
  for (const auto& key : schema()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.help.empty()) << key.path;
    EXPECT_EQ(key.status == Status::kBuilt, key.about.empty()) << key.path;
    const size_t dot = key.path.rfind('.');
    if (dot != std::string_view::npos) {
      const Key* owner = find_key(key.path.substr(0, dot));
      const bool free_owner = key.path.substr(0, dot).ends_with('*');  // a section of the user's naming may have no row of its own
      ASSERT_TRUE(owner != nullptr || free_owner) << key.path;
      if (owner != nullptr) {
        EXPECT_EQ(owner->type, Type::kSection) << key.path;
      }
    }
    const json fallback = fallback_of(key);
    if (!fallback.is_null() && fallback != "auto") {
      EXPECT_FALSE(check_value(key, fallback, false).issue.has_value()) << key.path;
    }
  }
  for (const auto& alias : aliases()) {
    EXPECT_NE(find_key(alias.target), nullptr) << alias.target;
    EXPECT_EQ(find_key(alias.path), nullptr) << alias.path;
  }
}

// Names that the data derives from keys, or that belong to sections whose content is free.
const std::set<std::string> kDerived = {
    "dp_world_size",
    "fp16.initial_dynamic_scale",
    "amp.params",
    "comms_logger.active",
    "monitor.any_enabled",
    "progressive_layer_drop.params",
    "checkpoint.tag_validation_enabled",
    "checkpoint.tag_validation_fail",
    "datastates_ckpt.enabled",
    "zero_optimization.overlap_comm",                              // resolved by stage
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",  // the old spelling
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
};

TEST(Schema, DefaultsEqualTheRecordedOnes) {
  std::ifstream file(DEEPSPEED_SOURCE_DIR "/tests/golden/units/config/defaults.json");
  const json golden = json::parse(file);
  const auto& effective = golden.at("cases")[0].at("expect").at("effective");
  int compared = 0;
  for (const auto& [name, value] : effective.items()) {
    if (kDerived.contains(name)) continue;
    std::string path = name;
    for (const auto& alias : aliases()) {
      if (alias.path == path) path = alias.target;
    }
    const Key* key = find_key(path);
    ASSERT_NE(key, nullptr) << path;
    if (key->type == Type::kSection || value.is_null()) continue;  // an unset section or value
    json fallback = fallback_of(*key);
    if (fallback == "fp32") fallback = "float32";
    EXPECT_EQ(fallback, value) << path;
    ++compared;
  }
  EXPECT_GT(compared, 120);
}

TEST(Schema, SchedulesHaveRowsWithCheckedDefaults) {
  EXPECT_EQ(schedule_names().size(), 5u);
  for (const auto name : schedule_names()) {
    for (const auto& key : schedule_parameters(name)) {
      if (key.fallback == "required" || key.fallback.empty()) continue;
      EXPECT_FALSE(check_value(key, fallback_of(key), false).issue.has_value()) << name << "." << key.path;
    }
  }
  EXPECT_TRUE(schedule_parameters("Warmup").empty());
}

// Set DS_WRITE_DOCS to rewrite the page.
TEST(Schema, TheReferencePageIsCurrent) {
  const std::string path = DEEPSPEED_SOURCE_DIR "/docs/config.md";
  if (std::getenv("DS_WRITE_DOCS") != nullptr) std::ofstream(path, std::ios::binary) << config_reference();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  EXPECT_TRUE(content.str() == config_reference())
      << "docs/config.md is out of date: run test_config with DS_WRITE_DOCS=1 and commit the page";
}

}  // namespace
}  // namespace deepspeed::config
