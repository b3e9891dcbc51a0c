// Checks one value against its row of the schema.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "config/schema.h"
#include "deepspeed/config.h"

namespace deepspeed::config {

struct CheckedValue {
  nlohmann::json value;              // in the form of the key's type: integers as int64, numbers as double, words as `allowed` spells them
  std::optional<ConfigIssue> issue;  // path is left empty
  std::string note;                  // the value was read with some goodwill, e.g. text as a number
};

// `typed`: read text such as "true" or "128" as a value. Not for sections and not for null.
CheckedValue check_value(const Key& key, const nlohmann::json& given, bool typed);

// A value as a message shows it, cut when long.
std::string shown(const nlohmann::json& value);
// What a key takes, in words: "an integer > 0".
std::string allowed_text(const Key& key);
// The default as JSON; null when there is none. Not for keys whose fallback is "required".
nlohmann::json fallback_of(const Key& key);
// A path inside `value` ("[1]", ".a") that holds a number that is not finite, or empty.
std::optional<std::string> find_not_finite(const nlohmann::json& value);

}  // namespace deepspeed::config
