// Text of a configuration file -> JSON value.
//
// The dialect: JSON plus comments (`#`, `//`, `/* */`), trailing commas, a byte order mark, and the number tokens NaN and Infinity (kept, so
// that the check of the key they stand at can refuse them by name). As in hjson a line break may stand for a comma, keys may go without quotes,
// text may have single quotes, three of them (several lines) or none (then it runs to the end of its line), and the outermost braces may be
// missing. Unlike hjson, text without quotes must not hold a double quote or end in a comma or bracket.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "deepspeed/config.h"

namespace deepspeed::config {

struct ParsedText {
  nlohmann::json value;             // null when the text does not parse
  std::vector<ConfigIssue> issues;  // at most one of kind kSyntax, and one of kind kDuplicateKey per repeated key
};

// Never throws for what the text says. Integers that do not fit in 64 bits become doubles. Of a repeated key the first value is kept.
ParsedText parse_relaxed_json(std::string_view text);

}  // namespace deepspeed::config
