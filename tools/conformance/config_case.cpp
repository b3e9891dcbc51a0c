// units/config: which configurations are accepted, which key an error names, and what the values come to.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "config/relaxed_json.h"
#include "config/schema.h"
#include "config/settings.h"
#include "config/walk.h"
#include "conformance/unit_file.h"
#include "deepspeed/config.h"

namespace deepspeed::conformance {
namespace {

using config::Settings;

struct Checked {
  ConfigResult result;
  Settings settings;
  Json given;  // the text as JSON
};

Checked check(const Json& item) {
  const auto text = item.at("text").get<std::string>();
  Checked checked{check_config(text, item.at("world").get<int64_t>()), {}, config::parse_relaxed_json(text).value};
  if (checked.given.is_object()) checked.settings = config::walk_configuration(checked.given);
  return checked;
}

bool only_not_built(const ConfigResult& result) {
  return std::all_of(result.issues.begin(), result.issues.end(),
                     [](const auto& issue) { return issue.kind == ConfigIssue::Kind::kNotBuilt; });
}

std::string features(const ConfigResult& result) {
  std::set<std::string> names;
  for (const auto& issue : result.issues) names.insert(issue.feature);
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string report(const ConfigResult& result) {
  std::string text;
  for (const auto& issue : result.issues) text += (text.empty() ? "" : "; ") + issue.path + ": " + issue.message;
  return text;
}

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// Whether `text` names the key: the last part of one of the keys joined by commas, or a batch key for "batch".
bool names_key(const std::string& text, const std::string& keys) {
  if (keys == "batch") return text.find("batch") != std::string::npos || text.find("accumulation") != std::string::npos;
  for (size_t begin = 0; begin <= keys.size();) {
    const size_t end = std::min(keys.find(',', begin), keys.size());
    if (text.find(last_part(keys.substr(begin, end - begin))) != std::string::npos) return true;
    begin = end + 1;
  }
  return false;
}

Json normal(Json value) {
  if (value.is_number()) {
    const double number = value.get<double>();
    return std::isfinite(number) ? Json(number) : Json(number > 0 ? "inf" : number < 0 ? "-inf" : "nan");
  }
  if (value == "fp32" || value == "fp16" || value == "bf16") {
    return value == "fp32" ? "float32" : value == "fp16" ? "float16" : "bfloat16";
  }
  if (value.is_structured()) {
    for (auto& item : value) item = normal(item);
  }
  return value;
}

bool any_flag(const Settings& settings, std::initializer_list<const char*> paths) {
  return std::any_of(paths.begin(), paths.end(), [&](const char* path) { return settings.get(path) == true; });
}

// Names that stand for no key of the file. Empty: not one of them.
std::optional<Json> derived(const std::string& name, const Checked& checked) {
  const Config& config = checked.result.config;
  const Settings& settings = checked.settings;
  if (name == "train_batch_size") return config.train_batch_size;
  if (name == "train_micro_batch_size_per_gpu") return config.train_micro_batch_size_per_gpu;
  if (name == "gradient_accumulation_steps") return config.gradient_accumulation_steps;
  if (name == "dp_world_size") return config.data_parallel_size;
  if (name == "fp16.initial_dynamic_scale") return std::ldexp(1.0, static_cast<int>(settings.integer("fp16.initial_scale_power")));
  if (name == "comms_logger.active") return any_flag(settings, {"comms_logger.enabled"});
  if (name == "monitor.any_enabled")
    return any_flag(settings, {"tensorboard.enabled", "wandb.enabled", "csv_monitor.enabled", "comet.enabled"});
  using Validation = Config::Checkpoint::TagValidation;
  if (name == "checkpoint.tag_validation_enabled") return config.checkpoint.tag_validation != Validation::kIgnore;
  if (name == "checkpoint.tag_validation_fail") return config.checkpoint.tag_validation == Validation::kFail;
  if (name == "optimizer.params" || name == "scheduler.params") {
    const std::string section = name.substr(0, name.find('.'));
    if (!settings.has(section + ".type")) return Json();
    return checked.given[section].value("params", Json());
  }
  if (name == "optimizer.type") {
    if (!settings.has(name)) return Json();
    const auto word = settings.get(name).get<std::string>();
    return config.optimizer.type.empty() ? word : config.optimizer.type;
  }
  if (name == "scheduler.type") return settings.get(name);
  return std::nullopt;
}

// The key of the schema that a name means; nullptr: the schema has none, such a name is not compared.
const config::Key* key_of(const std::string& name) {
  for (const auto& alias : config::aliases()) {
    if (alias.path == name && !alias.deprecated) return config::find_key(alias.target);
  }
  const auto* key = config::find_key(name);
  return key && key->path == name ? key : nullptr;
}

std::string compare_value(const std::string& name, const Json& expected, const Checked& checked) {
  Json got;
  if (const auto value = derived(name, checked)) {
    got = *value;
  } else {
    const auto* key = key_of(name);
    if (!key) return "";
    const std::string path(key->path);
    if (key->type == config::Type::kSection) {
      return expected.is_null() && checked.settings.has(path) ? name + ": got a section, expected none" : "";
    }
    got = checked.settings.get(path);
    // Settings without a default of ours: switches are off, others unset.
    if (got.is_null() && !checked.settings.has(path)) return "";
  }
  if (name == "optimizer.type" && got.is_string() && expected.is_string()) {
    std::string a = got, b = expected;
    for (auto* word : {&a, &b}) std::transform(word->begin(), word->end(), word->begin(), [](unsigned char c) { return std::tolower(c); });
    return a == b ? "" : name + ": got " + a + ", expected " + b;
  }
  return normal(got) == normal(expected) ? "" : name + ": got " + got.dump() + ", expected " + expected.dump();
}

std::string compare_effective(const Json& effective, const Json& absent, const Json& defaults, const Checked& checked) {
  for (const auto& [name, value] : effective.items()) {
    const std::string text = compare_value(name, value, checked);
    if (!text.empty()) return text;
  }
  for (const auto& [name, value] : defaults.items()) {
    const bool gone = std::find(absent.begin(), absent.end(), Json(name)) != absent.end();
    if (gone || effective.contains(name) || name == "dp_world_size" || name.find("batch_size") != std::string::npos) continue;
    const std::string text = compare_value(name, value, checked);
    if (!text.empty()) return text + " (the default)";
  }
  return "";
}

Json defaults_beside(const UnitFile& file) {
  const auto path = file.path.parent_path() / "defaults.json";
  if (!std::filesystem::exists(path)) return Json::object();
  return read_json(path).at("cases").at(0).at("expect").at("effective");
}

// What the reference refuses only when it builds the engine is refused with the configuration here (docs/differences.md).
bool refused_later_there(const ConfigResult& result) {
  return std::all_of(result.issues.begin(), result.issues.end(),
                     [](const auto& issue) { return issue.path == "optimizer.params.max_grad_norm"; });
}

std::string compare_expected(const UnitFile& file, const Json& expect, const Checked& checked) {
  if (!expect.at("accepted").get<bool>()) {
    if (checked.result.issues.empty()) return "accepted, expected an error";
    const Json key = expect.at("error").value("key", Json());
    if (key.is_null() || names_key(report(checked.result), key)) return "";
    return "the error does not name " + key.get<std::string>() + ": " + report(checked.result);
  }
  if (!checked.result.issues.empty()) return "refused: " + report(checked.result);
  return compare_effective(expect.at("effective"), expect.value("absent", Json::array()), defaults_beside(file), checked);
}

bool has_note_on(const Checked& checked, const std::string& keys) {
  return std::any_of(checked.result.config.notes.begin(), checked.result.config.notes.end(),
                     [&](const auto& note) { return names_key(note, keys); });
}

// "" when what `better` asks for was done.
std::string compare_better(const Json& item, const Checked& checked) {
  const std::string action = better_action(item);
  const Json key = item["better"].value("key", Json());
  if (action == "accept") {
    if (!checked.result.issues.empty()) return "refused: " + report(checked.result);
    return compare_effective(item["better"].value("effective", Json::object()), Json::array(), Json::object(), checked);
  }
  const bool told = key.is_null() || names_key(report(checked.result), key) || has_note_on(checked, key);
  if (action == "warn") return told ? "" : "the user is not told of " + key.dump();
  // "auto" that nothing fills in: the default with a note says it too.
  const bool resolved = item["text"].get<std::string>().find("\"auto\"") != std::string::npos && told;
  if (checked.result.issues.empty()) return resolved ? "" : "accepted, expected an error";
  return told ? "" : "the error does not name " + key.dump() + ": " + report(checked.result);
}

}  // namespace

Outcome run_config_case(const UnitFile& file, const Json& item) {
  const Checked checked = check(item);
  const Json& expect = item.at("expect");
  const std::string observed = compare_expected(file, expect, checked);
  std::optional<std::string> right;
  if (item.contains("better")) right = compare_better(item, checked);
  const bool matches = observed.empty() || (right && right->empty());
  if (!matches && !checked.result.issues.empty()) {
    const bool wanted = expect.at("accepted").get<bool>() || better_action(item) == "accept";
    if (wanted && only_not_built(checked.result)) return Outcome::skip(features(checked.result));
    if (refused_later_there(checked.result)) return Outcome::ok("refused at once; the reference refuses when it builds the engine");
  }
  return judge(observed, right);
}

}  // namespace deepspeed::conformance
