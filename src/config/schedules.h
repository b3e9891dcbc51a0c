// Checks the type and parameters of a learning-rate schedule, for the scheduler section and for the public check_schedule().
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "deepspeed/config.h"

namespace deepspeed::config {

struct Settings;

struct CheckedSchedule {
  nlohmann::json values = nlohmann::json::object();  // every parameter: as given, else its default; null where unset
  std::vector<ConfigIssue> issues;                   // path is the bare parameter name, "type", or "" for params as a whole
  std::vector<std::string> notes;
};

// `params` is what stands under scheduler.params; null means none. With `groups` the length of per-group lists is checked too. The text
// "auto" counts as not given.
CheckedSchedule check_schedule_values(const std::string& type, const nlohmann::json& params, std::optional<size_t> groups);

// Judges the scheduler section; adds issues and notes to `settings`.
void check_scheduler(Settings& settings);

}  // namespace deepspeed::config
