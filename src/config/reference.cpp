#include "config/reference.h"

#include <algorithm>

#include "base/text.h"
#include "config/schema.h"
#include "config/value.h"

namespace deepspeed::config {

namespace {

using base::str;

// A bar ends a cell of a Markdown table, also inside code.
std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

std::string type_text(const Key& key) {
  if (key.type == Type::kNumberOrList) return key.allowed.empty() ? "number or list" : str("number or list ", key.allowed);
  std::string text = allowed_text(key);
  for (const char* article : {"an ", "a "}) {
    if (text.starts_with(article)) text = text.substr(std::string_view(article).size());
  }
  return text;
}

std::string default_text(const Key& key) {
  constexpr size_t kLongest = 60;
  if (key.fallback.empty() || key.fallback == "null") return "";
  if (key.fallback == "required") return "required";
  if (key.fallback == "9223372036854775807") return "no limit";
  if (key.fallback.size() > kLongest) return "a list";
  return str("`", key.fallback, "`");
}

std::string status_text(const Key& key) {
  switch (key.status) {
    case Status::kBuilt:
      return "yes";
    case Status::kNoEffect:
      return str("accepted, without effect: ", key.about);
    case Status::kNotBuilt:
      return str("not built: ", key.about);
    case Status::kDetail:
      return str("part of ", key.about);
  }
  return "";
}

std::string row(const Key& key, std::string_view shown_path) {
  const bool section = key.type == Type::kSection;
  return str("| `", shown_path, "` | ", cell(section ? "section" : type_text(key)), " | ", cell(default_text(key)), " | ",
             cell(section && key.status == Status::kBuilt ? "" : status_text(key)), " | ", cell(key.help),
             key.since.empty() ? "" : str(" (since ", key.since, ")"), " |\n");
}

constexpr const char* kHead = "| Key | Value | Default | Built | Meaning |\n|---|---|---|---|---|\n";

constexpr const char* kIntroduction =
    R"(# Configuration reference

This page is generated from the schema in `src/config/schema_*.cpp`; a test fails when it is out of date.

A configuration is a JSON object. Comments (`#`, `//`, `/* */`), trailing commas and line breaks in place of commas are allowed, as are keys and
words without quotes, texts in single quotes, and a file without the outermost braces (hjson). Every error is reported at once, each with its
key, what was given, what is allowed and the nearest valid key. Unknown and repeated keys are errors. Defaults are those of DeepSpeed 0.18.4.

- `5e8` and `500000000.0` are integers. Numbers must be finite. `true` is not a number.
- `"auto"` stands for the default, with a note; the three batch keys refuse it, because nothing fills them in here.
- In typed sections (marked) text such as `"true"`, `"yes"` or `"128"` is read as a value, with a note, and `null` is refused. Elsewhere `null`
  means "not given".
- *Built*: "yes" takes effect. "accepted, without effect" leaves a note when the value is not the default. "not built" is refused by name when
  the value is not the default. "part of" belongs to a feature that another key switches on; it is checked, and idle while that is off.

The batch keys: `train_batch_size` = `train_micro_batch_size_per_gpu` * `gradient_accumulation_steps` * data-parallel ranks. Give the first or
the second or both; the rest is inferred (accumulation is 1 unless both are given) and must fit exactly.
)";

}  // namespace

std::string config_reference() {
  std::string page = kIntroduction;
  page += str("\n## Top level\n\n", kHead);
  for (const auto& key : schema_general()) page += row(key, key.path);

  std::string heading;
  for (const auto& key : schema()) {
    if (key.type != Type::kSection && key.path.find('.') == std::string_view::npos) {
      if (key.path == "datastates_ckpt" || key.path == "weight_quantization") {
        heading = key.path;
        page += str("\n## ", key.path, "\n\n", kHead, row(key, key.path));
      }
      continue;
    }
    const std::string top(key.path.substr(0, key.path.find('.')));
    if (top != heading) {
      heading = top;
      page += str("\n## ", top, "\n\n", key.help, (key.flags & kTyped) != 0 ? " Typed section." : "", "\n\n", kHead);
      if (key.path == top) continue;
    }
    page += row(key, key.path.substr(top.size() + 1));
  }

  page += "\n## Parameters of the schedules\n\nUnder `scheduler.params`.\n";
  for (const auto name : schedule_names()) {
    page += str("\n### ", name, "\n\n", kHead);
    for (const auto& key : schedule_parameters(name)) page += row(key, key.path);
  }

  page += "\n## Other spellings\n\n| Spelling | Stands for |\n|---|---|\n";
  for (const auto& alias : aliases())
    page += str("| `", alias.path, "` | `", alias.target, "`", alias.deprecated ? " (deprecated)" : "", " |\n");
  page += "| `zero_optimization: true`, `false` | stage 1, 0 (deprecated) |\n";
  return page;
}

}  // namespace deepspeed::config
