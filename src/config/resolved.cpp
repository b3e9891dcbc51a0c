#include "config/resolved.h"

#include <map>

#include "base/text.h"
#include "config/optimizer.h"
#include "config/relaxed_json.h"
#include "config/schema.h"
#include "config/value.h"
#include "config/walk.h"

namespace deepspeed::config {

namespace {

using base::str;
using nlohmann::json;
using Source = ResolvedValue::Source;
using Values = std::map<std::string, std::pair<json, Source>>;

bool starts_with_any(std::string_view path, std::initializer_list<std::string_view> heads) {
  for (const auto head : heads) {
    if (path.starts_with(head)) return true;
  }
  return false;
}

// Defaults that stand in the schema. Those of optimizers and schedules depend on the type.
void add_defaults(const Settings& settings, Values& values) {
  for (const auto& key : schema()) {
    const bool listed = key.status == Status::kBuilt && key.type != Type::kSection && key.path.find('*') == std::string_view::npos &&
                        key.fallback != "required" && !starts_with_any(key.path, {"optimizer.", "scheduler."});
    if (listed && !settings.has(key.path)) values[std::string(key.path)] = {fallback_of(key), Source::kDefault};
  }
}

void add_optimizer(const Config::Optimizer& optimizer, Values& values) {
  const json all = optimizer_values(optimizer);
  for (const auto& [name, value] : all.items()) values.try_emplace(str("optimizer.params.", name), value, Source::kDefault);
}

void add_schedule(const Config::Scheduler& schedule, Values& values) {
  if (schedule.type.empty()) return;
  const json given = json::parse(schedule.params_json);
  const json all = json::parse(check_schedule(schedule.type, schedule.params_json).values_json);
  values.erase("scheduler.params");  // its parts stand alone
  for (const auto& [name, value] : all.items()) {
    values[str("scheduler.params.", name)] = {value, given.contains(name) ? Source::kFile : Source::kDefault};
  }
}

void add_batch(const Settings& settings, const Config& config, Values& values) {
  const auto add = [&](const char* name, int64_t value) { values[name] = {value, settings.has(name) ? Source::kFile : Source::kComputed}; };
  add("train_batch_size", config.train_batch_size);
  add("train_micro_batch_size_per_gpu", config.train_micro_batch_size_per_gpu);
  add("gradient_accumulation_steps", config.gradient_accumulation_steps);
  add("data_parallel_size", config.data_parallel_size);
}

}  // namespace

const char* to_string(Source source) { return source == Source::kFile ? "file" : source == Source::kDefault ? "default" : "computed"; }

Resolved resolve_config(const std::string& text, int64_t world_size) {
  Resolved resolved;
  resolved.result = check_config(text, world_size);
  if (!resolved.result.issues.empty()) return resolved;
  const Settings settings = walk_configuration(parse_relaxed_json(text).value);
  Values values;
  for (const auto& [path, value] : settings.given) {
    const Key* key = find_key(path);
    if (key == nullptr || key->type != Type::kSection) values[path] = {value, Source::kFile};
  }
  add_defaults(settings, values);
  add_optimizer(resolved.result.config.optimizer, values);
  add_schedule(resolved.result.config.scheduler, values);
  add_batch(settings, resolved.result.config, values);
  for (auto& [path, entry] : values) resolved.values.push_back({path, std::move(entry.first), entry.second});
  return resolved;
}

}  // namespace deepspeed::config
