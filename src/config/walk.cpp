#include "config/walk.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "config/schema.h"
#include "config/value.h"

namespace deepspeed::config {

using base::str;
using nlohmann::json;
using Kind = ConfigIssue::Kind;

json Settings::get(std::string_view path) const {
  const auto found = given.find(path);
  if (found != given.end()) return found->second;
  const Key* key = find_key(path);
  DS_CHECK(key != nullptr, "no row for ", path);
  return fallback_of(*key);
}

bool Settings::spoiled(std::string_view path) const {
  return std::any_of(issues.begin(), issues.end(),
                     [&](const ConfigIssue& issue) { return issue.path == path && issue.kind != Kind::kNotBuilt; });
}

namespace {

constexpr size_t kFewPaths = 3;  // a hint that lists more places helps nobody

class Walker {
 public:
  explicit Walker(Settings& settings) : settings_(settings) {}

  void section(const std::string& path, const json& object, bool typed) {
    for (const auto& [name, value] : object.items()) {
      const std::string full = path.empty() ? name : path + "." + name;
      const Alias* alias = name.find('.') == std::string::npos ? alias_of(full) : nullptr;
      const std::string target = alias != nullptr ? std::string(alias->target) : full;
      const Key* key = name.find('.') == std::string::npos ? find_key(target) : nullptr;
      if (key == nullptr) {
        unknown(path, name, full);
      } else if (alias == nullptr || use_alias(*alias, object)) {
        entry(*key, target, full, value, typed || (key->flags & kTyped) != 0);
      }
    }
  }

  void finish() {
    if (old_zero_ && settings_.has("allgather_size")) {
      settings_.given["zero_optimization.allgather_bucket_size"] = settings_.get("allgather_size");
    }
    if (autos_.empty()) return;
    settings_.notes.push_back(str("\"auto\" stands for the default here: ", base::join(autos_, ", ")));
  }

 private:
  static const Alias* alias_of(std::string_view path) {
    for (const auto& alias : aliases()) {
      if (alias.path == path) return &alias;
    }
    return nullptr;
  }

  // False when the key that it stands for is given as well.
  bool use_alias(const Alias& alias, const json& object) {
    const std::string target(alias.target.substr(alias.target.rfind('.') + 1));
    if (object.contains(target) || settings_.has(alias.target)) {
      const bool whole_section = find_key(alias.target)->type == Type::kSection;
      if (whole_section) {  // DeepSpeed takes the proper name and never looks at the other one
        settings_.notes.push_back(str(alias.path, ": another spelling of ", alias.target, ", which is given too and wins"));
      } else {
        settings_.refuse(Kind::kConflict, std::string(alias.path),
                         str("got both ", alias.path, " and ", alias.target, ", allowed one of the two spellings of the same key"));
      }
      return false;
    }
    if (alias.deprecated) settings_.notes.push_back(str(alias.path, ": deprecated, write ", alias.target));
    return true;
  }

  void unknown(const std::string& section, const std::string& name, const std::string& full) {
    const auto siblings = names_inside(section);
    std::string message = "got an unknown key";
    if (name.find('.') != std::string::npos && find_key(full) != nullptr) {
      message += "; nest it as objects inside each other";
    } else if (const std::string near = base::nearest(name, siblings); !near.empty()) {
      message += str("; did you mean \"", near, "\"?");
    } else if (const auto elsewhere = paths_ending_in(name); !elsewhere.empty() && elsewhere.size() <= kFewPaths) {
      message += str("; did you mean ", base::join(elsewhere, " or "), "?");
    } else {
      constexpr size_t kShortList = 12;
      message += siblings.empty() || siblings.size() > kShortList ? ", allowed are the keys of docs/config.md"
                                                                  : str(", allowed here ", base::join(siblings, ", "));
    }
    settings_.refuse(Kind::kUnknownKey, full, message);
  }

  void entry(const Key& key, const std::string& path, const std::string& written, const json& value, bool typed) {
    if (value.is_null() && may_be_null(key, typed)) return;
    if (value == "auto" && key.type != Type::kSection && key.fallback != "\"auto\"") {
      if ((key.flags & kAutoRefused) != 0) {
        settings_.refuse(
            Kind::kWrongType, written,
            str("got \"auto\", allowed ", allowed_text(key), "; nothing fills it in here: give a number or leave the key out"));
      } else {
        autos_.push_back(written);
      }
      return;
    }
    if (path == "zero_optimization" && value.is_boolean()) {
      old_zero_ = true;
      settings_.given[path] = true;
      settings_.given["zero_optimization.stage"] = value.get<bool>() ? 1 : 0;
      settings_.notes.push_back(
          str("zero_optimization: ", shown(value), " is an old spelling of {\"stage\": ", value.get<bool>() ? 1 : 0, "}"));
      return;
    }
    CheckedValue checked = check_value(key, value, typed);
    if (checked.issue) {
      checked.issue->path = written;
      if (key.type == Type::kSection && value.is_boolean() && find_key(path + ".enabled") != nullptr) {
        checked.issue->message += str("; write {\"enabled\": ", shown(value), "}");
      }
      settings_.issues.push_back(*checked.issue);
      return;
    }
    if (!checked.note.empty()) settings_.notes.push_back(str(written, ": ", checked.note));
    judge(key, written, value, checked.value);
    settings_.given[path] = key.type == Type::kSection ? json(true) : checked.value;
    if (key.type == Type::kSection) section(path, value, typed);
  }

  // In typed sections only keys that start as null take null; elsewhere it means "not given".
  static bool may_be_null(const Key& key, bool typed) { return !typed || key.fallback == "null"; }

  void judge(const Key& key, const std::string& written, const json& given, const json& value) {
    if (key.status == Status::kBuilt || key.status == Status::kDetail) return;
    const json fallback = fallback_of(key);
    // A switch without a default is off when it is false.
    const bool changed = key.type == Type::kSection || (fallback.is_null() && key.type == Type::kBool ? value == true : value != fallback);
    if (!changed) return;
    if (key.status == Status::kNoEffect) {
      settings_.notes.push_back(str(written, ": ", shown(given), " changes nothing here: ", key.about));
    } else {
      std::string message = str("got ", shown(given), "; this version has no ", key.about);
      if (!fallback.is_null()) message += str(", allowed ", shown(fallback));
      if (fallback.is_null()) message += ", leave it out";
      settings_.issues.push_back({Kind::kNotBuilt, written, message, std::string(key.about)});
    }
  }

  Settings& settings_;
  std::vector<std::string> autos_;
  bool old_zero_ = false;  // zero_optimization is true or false
};

}  // namespace

Settings walk_configuration(const json& root) {
  Settings settings;
  Walker walker(settings);
  walker.section("", root, false);
  walker.finish();
  return settings;
}

}  // namespace deepspeed::config
