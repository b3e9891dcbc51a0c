// The schema of ds_config.json as data: one row per key.
//
// Parsing, validation, hints and the reference page (docs/config.md) all come from these rows, so a key cannot be accepted without being
// documented, or documented without being checked. Defaults are those of DeepSpeed 0.18.4.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::config {

enum class Type {
  kSection,  // an object whose keys have rows of their own
  kBool,
  kInteger,  // 5e8 and 500000000.0 count as integers
  kNumber,   // finite
  kText,
  kChoice,         // one of the words in `allowed`
  kChoiceAnyCase,  // the same, in any case
  kTextList,
  kIntegerList,
  kNumberList,
  kNumberOrList,  // a number, or one per parameter group
  kAny,           // not looked into, except that numbers must be finite
};

// What this version does with a key.
enum class Status {
  kBuilt,     // takes effect
  kNoEffect,  // accepted; a value other than the default leaves a note that says why it changes nothing
  kNotBuilt,  // a value other than the default is refused, by the name of the feature
  kDetail,    // belongs to a feature that another key switches on; checked, and without effect while that is off
};

enum Flag : unsigned {
  kNoFlags = 0,
  kTyped = 1,         // section in which text such as "true" or "128" is read as a value, and null is refused
  kAutoRefused = 2,   // "auto" must be filled in by the caller
  kBoolIsNumber = 4,  // true and false were once allowed here for 1 and 0
};

struct Key {
  std::string_view path;  // dotted; a part "*" stands for a name of the user's choice
  Type type;
  std::string_view fallback;  // the default as JSON; "" = unset
  std::string_view allowed;   // "", "> 0", ">= 0", "0 .. 3", "a | b | c"; also the text of the error
  Status status;
  std::string_view about;  // kNoEffect: why; kNotBuilt and kDetail: the name of the feature
  std::string_view since;  // "" = in 0.18.4 already
  std::string_view help;
  unsigned flags = kNoFlags;
};

// A second spelling of a key or a section.
struct Alias {
  std::string_view path;
  std::string_view target;
  bool deprecated;  // leaves a note
};

// All rows in the order of the reference page.
const std::vector<Key>& schema();
const std::vector<Alias>& aliases();
// Parameters of one learning-rate schedule ("WarmupLR"): rows whose path is the bare name of the parameter. Empty for an unknown schedule.
std::span<const Key> schedule_parameters(std::string_view schedule);
const std::vector<std::string_view>& schedule_names();

// The row of a path whose parts may match "*" rows; nullptr when there is none.
const Key* find_key(std::string_view path);
// Names that may stand directly inside a section ("" = top level), aliases included, without "*".
std::vector<std::string> names_inside(std::string_view section);
// Paths of all keys called `name`, in whatever section.
std::vector<std::string> paths_ending_in(std::string_view name);

// Parts of the table, one per file.
std::span<const Key> schema_general();
std::span<const Key> schema_optimizer();
std::span<const Key> schema_precision();
std::span<const Key> schema_zero();
std::span<const Key> schema_observability();
std::span<const Key> schema_parallel();
std::span<const Key> schema_data();
std::span<const Key> schema_compression();

}  // namespace deepspeed::config
