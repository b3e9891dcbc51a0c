// Environment variables as typed values. Whatever is wrong with one is an Error(kEnvironment) that names the variable, what was found
// and what is allowed.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace deepspeed::base {

// The whole of `text` as a decimal number (a leading '-' allowed, nothing else), or nothing.
std::optional<int64_t> parse_integer(std::string_view text);

// A snapshot of environment variables. Immutable, so safe from any thread; tests make their own from a map.
class Environment {
 public:
  using Map = std::map<std::string, std::string>;

  static Environment of_process();
  explicit Environment(Map variables) : variables_(std::move(variables)) {}

  // Set at all, also to an empty value.
  bool has(const std::string& name) const { return variables_.count(name) > 0; }
  // The value; an empty one counts as not set, as shells use it so.
  std::optional<std::string> text(const std::string& name) const;
  // The value as a number in [least, most]. Empty, non-numeric and out of range are errors, not "not set".
  std::optional<int64_t> integer(const std::string& name, int64_t least = std::numeric_limits<int64_t>::min(),
                                 int64_t most = std::numeric_limits<int64_t>::max()) const;

  const Map& all() const { return variables_; }

 private:
  Map variables_;
};

}  // namespace deepspeed::base
