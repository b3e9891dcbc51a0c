#include "config/schedules.h"

#include <algorithm>

#include "base/text.h"
#include "config/schema.h"
#include "config/settings.h"
#include "config/value.h"

namespace deepspeed::config {

namespace {

using base::str;
using nlohmann::json;
using Kind = ConfigIssue::Kind;

// torch.optim.lr_scheduler classes that DeepSpeed would look up by name.
constexpr std::string_view kTorch[] = {
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
};

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto name : schedule_names()) result.emplace_back(name);
  return result;
}

ConfigIssue judge_type(const std::string& type) {
  const std::string allowed = base::join(names(), ", ");
  if (std::find(std::begin(kTorch), std::end(kTorch), type) != std::end(kTorch)) {
    return {Kind::kNotBuilt, "type", str("got \"", type, "\"; this version has no schedules of torch, allowed ", allowed),
            str("scheduler ", type)};
  }
  std::string message = str("got ", shown(type), ", allowed ", allowed);
  const std::string near = base::nearest(type, names());
  if (!near.empty()) message += str("; did you mean \"", near, "\"?");
  return {Kind::kBadValue, "type", message, ""};
}

void check_unknown(const std::string& type, const json& params, std::span<const Key> keys, CheckedSchedule& result) {
  std::vector<std::string> known;
  for (const auto& key : keys) known.emplace_back(key.path);
  for (const auto& [name, value] : params.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = base::nearest(name, known);
    result.issues.push_back({Kind::kUnknownKey, name,
                             near.empty() ? str("got an unknown key, allowed for ", type, " ", base::join(known, ", "))
                                          : str("got an unknown key; did you mean \"", near, "\"?"),
                             ""});
  }
}

void check_length(const Key& key, const json& value, std::optional<size_t> groups, CheckedSchedule& result) {
  if (!value.is_array()) return;
  if (value.empty() || (groups && value.size() != *groups)) {
    result.issues.push_back(
        {Kind::kBadValue, std::string(key.path),
         str("got ", value.size(), " values, allowed ", groups ? str(*groups) : std::string("1 or more"), ", one per parameter group"),
         ""});
  }
}

// Sense between parameters that are each fine on their own.
void look_for_oddities(const std::string& type, CheckedSchedule& result) {
  const json& values = result.values;
  if (type == "OneCycle" && values["cycle_min_lr"].is_number() && values["cycle_max_lr"].is_number() &&
      values["cycle_max_lr"] < values["cycle_min_lr"]) {
    result.notes.push_back(str("cycle_max_lr ", shown(values["cycle_max_lr"]), " is below cycle_min_lr ", shown(values["cycle_min_lr"]),
                               ": the cycle runs downwards; are the two swapped?"));
  }
  if (values.contains("total_num_steps") && values["total_num_steps"] < values["warmup_num_steps"]) {
    result.notes.push_back(str("total_num_steps ", shown(values["total_num_steps"]), " is below warmup_num_steps ",
                               shown(values["warmup_num_steps"]), ": the rate falls to its end as soon as warm-up is over"));
  }
}

}  // namespace

CheckedSchedule check_schedule_values(const std::string& type, const json& params, std::optional<size_t> groups) {
  CheckedSchedule result;
  const auto keys = schedule_parameters(type);
  if (keys.empty()) {
    result.issues.push_back(judge_type(type));
    return result;
  }
  const json given = params.is_null() ? json::object() : params;
  if (!given.is_object()) {
    result.issues.push_back({Kind::kWrongType, "", str("got ", shown(given), ", allowed an object { }"), ""});
    return result;
  }
  check_unknown(type, given, keys, result);
  std::vector<std::string> autos;
  for (const auto& key : keys) {
    const std::string name(key.path);
    const bool required = key.fallback == "required";
    const bool absent = !given.contains(name) || given[name] == "auto" || (given[name].is_null() && (required || key.fallback.empty()));
    if (given.contains(name) && given[name] == "auto") autos.push_back(name);
    if (absent && required) {
      result.issues.push_back({Kind::kMissing, name, str("got none, allowed ", allowed_text(key), "; ", type, " needs it"), ""});
    } else if (absent) {
      result.values[name] = fallback_of(key);
    } else {
      auto checked = check_value(key, given[name], false);
      if (checked.issue) {
        checked.issue->path = name;
        result.issues.push_back(*checked.issue);
      } else {
        check_length(key, checked.value, groups, result);
        result.values[name] = std::move(checked.value);
      }
    }
  }
  if (!autos.empty()) result.notes.push_back(str("\"auto\" stands for the default here: ", base::join(autos, ", ")));
  if (result.issues.empty()) look_for_oddities(type, result);
  return result;
}

void check_scheduler(Settings& settings) {
  if (!settings.has("scheduler.type")) {
    if (settings.has("scheduler.params") && !settings.spoiled("scheduler.type")) {
      settings.notes.push_back("scheduler: the section names no type, so the rate stays constant and params have no effect");
    }
    return;
  }
  if (settings.spoiled("scheduler.params")) return;
  const auto checked =
      check_schedule_values(settings.get("scheduler.type").get<std::string>(), settings.get("scheduler.params"), std::nullopt);
  for (auto issue : checked.issues) {
    if (issue.path.empty()) {
      issue.path = "scheduler.params";
    } else {
      issue.path = (issue.path == "type" ? "scheduler." : "scheduler.params.") + issue.path;
    }
    settings.issues.push_back(std::move(issue));
  }
  for (const auto& note : checked.notes) settings.notes.push_back("scheduler.params: " + note);
}

}  // namespace deepspeed::config

namespace deepspeed {

ScheduleCheck check_schedule(const std::string& type, const std::string& params_json, std::optional<int64_t> groups) {
  using nlohmann::json;
  const json params = params_json.empty() ? json::object() : json::parse(params_json, nullptr, false);
  if (params.is_discarded()) return {"", {{ConfigIssue::Kind::kSyntax, "", "got text that is not JSON, allowed an object { }", ""}}, {}};
  auto checked =
      config::check_schedule_values(type, params, groups ? std::optional<size_t>(static_cast<size_t>(*groups)) : std::optional<size_t>());
  return {checked.values.dump(), std::move(checked.issues), std::move(checked.notes)};
}

}  // namespace deepspeed
