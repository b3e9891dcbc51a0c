// What a configuration sets, by the dotted path of the schema, with defaults for the rest.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "deepspeed/config.h"

namespace deepspeed::config {

// Grows while the text is walked, then only read. Sections that stand in the text are in `given` too, with the value true.
struct Settings {
  std::map<std::string, nlohmann::json, std::less<>> given;  // checked values, without "auto" and null
  std::vector<ConfigIssue> issues;
  std::vector<std::string> notes;

  bool has(std::string_view path) const { return given.find(path) != given.end(); }
  // The value of a key of the schema: as given, else its default, else null.
  nlohmann::json get(std::string_view path) const;
  bool flag(std::string_view path) const { return get(path).get<bool>(); }
  int64_t integer(std::string_view path) const { return get(path).get<int64_t>(); }
  double number(std::string_view path) const { return get(path).get<double>(); }

  // True when an issue stands at this very path, so that what depends on the key need not be judged.
  bool spoiled(std::string_view path) const;

  void refuse(ConfigIssue::Kind kind, std::string path, std::string message) {
    issues.push_back({kind, std::move(path), std::move(message), ""});
  }
};

}  // namespace deepspeed::config
