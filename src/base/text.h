// Joining values into text.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::base {

// Concatenates its arguments as operator<< prints them.
template <typename... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::string join(const std::vector<std::string>& parts, std::string_view separator);

// The candidate with the smallest edit distance to `word`, or "" when none is close enough to be a likely typing error
// (more than a third of the longer word differs).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// 1536 -> "1.5 KiB".
std::string human_bytes(double bytes);
// 134515008 -> "134.5 M".
std::string human_count(double count);

}  // namespace deepspeed::base
