#include "base/environment.h"

#include <unistd.h>

#include <charconv>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::base {

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

Environment Environment::of_process() {
  Map variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));  // of duplicates the first one, as getenv does
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::text(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int64_t> Environment::integer(const std::string& name, int64_t least, int64_t most) const {
  const auto found = variables_.find(name);
  if (found == variables_.end()) return std::nullopt;
  const auto value = parse_integer(found->second);
  if (value && *value >= least && *value <= most) return value;
  std::string range = "a whole number";
  if (least > std::numeric_limits<int64_t>::min()) range += str(" from ", least);
  if (most < std::numeric_limits<int64_t>::max()) range += str(" up to ", most);
  throw Error(ErrorCode::kEnvironment, "environment",
              str("environment variable ", name, ": got \"", found->second, "\", allowed ", range, ", or unset"));
}

}  // namespace deepspeed::base
