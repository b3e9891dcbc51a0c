#include "schedule/schedule.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "deepspeed/config.h"
#include "deepspeed/error.h"

namespace deepspeed::schedule {

namespace {

using base::str;
using nlohmann::json;

struct Maker {
  const char* type;
  std::unique_ptr<Curve> (*make)(const json&, const std::vector<GroupRates>&);
};

constexpr Maker kMakers[] = {
    {"LRRangeTest", make_range_test},     {"OneCycle", make_one_cycle},           {"WarmupLR", make_warmup},
    {"WarmupDecayLR", make_warmup_decay}, {"WarmupCosineLR", make_warmup_cosine},
};

ScheduleCheck checked_or_throw(const std::string& type, const std::string& params_json, size_t groups) {
  auto checked = check_schedule(type, params_json, static_cast<int64_t>(groups));
  if (checked.issues.empty()) return checked;
  std::vector<std::string> lines = {str("the schedule \"", type, "\" cannot be made:")};
  for (const auto& issue : checked.issues) lines.push_back(str("  ", issue.path.empty() ? "params" : issue.path, ": ", issue.message));
  const bool not_built = checked.issues.front().kind == ConfigIssue::Kind::kNotBuilt;
  throw Error(not_built ? ErrorCode::kNotBuilt : ErrorCode::kConfigInvalid, "schedule", base::join(lines, "\n"));
}

}  // namespace

Schedule::Schedule(std::string type, std::unique_ptr<Curve> curve, std::vector<GroupRates>& groups, int64_t iteration,
                   std::vector<std::string> notes)
    : type_(std::move(type)),
      curve_(std::move(curve)),
      groups_(groups),
      iteration_(iteration),
      fresh_(iteration < 0),
      notes_(std::move(notes)) {}

void Schedule::step() { step_to(iteration_ + 1); }

void Schedule::step_to(int64_t iteration) {
  iteration_ = iteration;
  fresh_ = false;
  apply();
}

void Schedule::apply() {
  if (!curve_) return;
  for (size_t i = 0; i < groups_.size(); ++i) {
    groups_[i].lr = curve_->lr(i, iteration_);
    if (!groups_[i].betas) continue;
    if (const auto betas = curve_->betas(i, iteration_, fresh_)) groups_[i].betas = betas;
  }
}

std::vector<double> Schedule::last_lr() const {
  std::vector<double> rates;
  for (size_t i = 0; i < groups_.size(); ++i) rates.push_back(curve_ ? curve_->lr(i, iteration_) : groups_[i].lr);
  return rates;
}

std::string Schedule::state_json() const { return json{{"last_batch_iteration", iteration_}}.dump(); }

void Schedule::load_state_json(const std::string& text) {
  const json state = json::parse(text, nullptr, false);
  if (!state.is_object() || !state.contains("last_batch_iteration") || !state["last_batch_iteration"].is_number_integer()) {
    throw Error(ErrorCode::kCheckpointMismatch, "schedule",
                str("state of the schedule: got ", text.substr(0, 80), ", allowed {\"last_batch_iteration\": <integer>}"));
  }
  iteration_ = state["last_batch_iteration"].get<int64_t>();
  fresh_ = iteration_ < 0;
}

std::unique_ptr<Schedule> make_schedule(const std::string& type, const std::string& params_json, std::vector<GroupRates>& groups) {
  constexpr int64_t kBeforeStart = -1;
  if (type.empty()) return std::make_unique<Schedule>(type, nullptr, groups, kBeforeStart, std::vector<std::string>());
  auto checked = checked_or_throw(type, params_json, groups.size());
  const json values = json::parse(checked.values_json);
  const auto* maker = std::find_if(std::begin(kMakers), std::end(kMakers), [&](const Maker& entry) { return type == entry.type; });
  DS_CHECK(maker != std::end(kMakers), "no curve for the schedule ", type);
  auto curve = maker->make(values, groups);
  const bool no_betas = std::none_of(groups.begin(), groups.end(), [](const GroupRates& group) { return group.betas.has_value(); });
  if (type == "OneCycle" && values["cycle_momentum"] == true && no_betas) {
    checked.notes.push_back("cycle_momentum has no effect: the optimizer has no betas");
  }
  const auto iteration = values["last_batch_iteration"].get<int64_t>();
  auto schedule = std::make_unique<Schedule>(type, std::move(curve), groups, iteration, std::move(checked.notes));
  schedule->apply();
  return schedule;
}

}  // namespace deepspeed::schedule
