// Every value that a run would use, and where it came from.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "deepspeed/config.h"

namespace deepspeed::config {

struct ResolvedValue {
  enum class Source { kFile, kDefault, kComputed };  // kComputed: follows from other keys or the number of ranks
  std::string path;
  nlohmann::json value;  // null: unset
  Source source;
};

const char* to_string(ResolvedValue::Source source);

struct Resolved {
  ConfigResult result;
  std::vector<ResolvedValue> values;  // sorted by path; empty when result has issues
};

// As check_config. Keys without effect, and keys of features that are not built, are listed only when the text gives them.
Resolved resolve_config(const std::string& text, int64_t world_size);

}  // namespace deepspeed::config
