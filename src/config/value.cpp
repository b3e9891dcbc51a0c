#include "config/value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/text.h"

namespace deepspeed::config {

namespace {

using base::str;
using nlohmann::json;
using Kind = ConfigIssue::Kind;

std::string lower(std::string_view word) {
  std::string result(word);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// "a | b | c" -> its words.
std::vector<std::string> words_of(std::string_view allowed) {
  std::vector<std::string> words;
  while (!allowed.empty()) {
    const size_t bar = allowed.find(" | ");
    words.emplace_back(allowed.substr(0, bar));
    allowed = bar == std::string_view::npos ? std::string_view() : allowed.substr(bar + 3);
  }
  return words;
}

// "> 0", ">= 0", "0 .. 3". An empty text allows all.
bool in_range(std::string_view allowed, double value) {
  if (allowed.empty()) return true;
  const auto number = [](std::string_view text) { return std::stod(std::string(text)); };
  if (allowed.starts_with(">= ")) return value >= number(allowed.substr(3));
  if (allowed.starts_with("> ")) return value > number(allowed.substr(2));
  const size_t dots = allowed.find(" .. ");
  return value >= number(allowed.substr(0, dots)) && value <= number(allowed.substr(dots + 4));
}

bool all_of_text(std::string_view text, double& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

CheckedValue refuse(Kind kind, const Key& key, const json& given) {
  return {nullptr, ConfigIssue{kind, "", str("got ", shown(given), ", allowed ", allowed_text(key)), ""}, ""};
}

CheckedValue accept(json value, std::string note = "") { return {std::move(value), std::nullopt, std::move(note)}; }

std::string goodwill(const json& given, const json& value) { return str(shown(given), " is read as ", shown(value)); }

CheckedValue check_bool(const Key& key, const json& given, bool typed) {
  if (given.is_boolean()) return accept(given);
  if (typed) {
    const std::string word = given.is_string() ? lower(given.get<std::string>()) : std::string();
    for (const char* yes : {"true", "yes", "on", "1", "t", "y"}) {
      if (word == yes) return accept(true, goodwill(given, true));
    }
    for (const char* no : {"false", "no", "off", "0", "f", "n"}) {
      if (word == no) return accept(false, goodwill(given, false));
    }
    if (given.is_number() && (given == 0 || given == 1)) return accept(given == 1, goodwill(given, given == 1));
  }
  return refuse(Kind::kWrongType, key, given);
}

CheckedValue check_integer(const Key& key, const json& given, bool typed) {
  json value = given;
  std::string note;
  if (given.is_boolean() && (key.flags & kBoolIsNumber) != 0) {
    value = given.get<bool>() ? 1 : 0;
    note = goodwill(given, value);
  } else if (given.is_string() && typed) {
    int64_t number = 0;
    const auto text = given.get<std::string>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return refuse(Kind::kWrongType, key, given);
    value = number;
    note = goodwill(given, value);
  }
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!std::isfinite(number) || number != std::floor(number)) return refuse(Kind::kBadValue, key, given);
    if (std::abs(number) >= 9.2e18) {
      return {nullptr, ConfigIssue{Kind::kOutOfRange, "", str("got ", shown(given), ", allowed an integer that fits in 64 bits"), ""}, ""};
    }
    value = static_cast<int64_t>(number);
  }
  if (!value.is_number_integer()) return refuse(Kind::kWrongType, key, given);
  if (!in_range(key.allowed, static_cast<double>(value.get<int64_t>()))) return refuse(Kind::kOutOfRange, key, given);
  return accept(value, note);
}

CheckedValue check_number(const Key& key, const json& given, bool typed) {
  double number = 0;
  std::string note;
  if (given.is_number()) {
    number = given.get<double>();
  } else if (given.is_string() && typed && all_of_text(given.get_ref<const std::string&>(), number)) {
    note = goodwill(given, number);
  } else {
    return refuse(Kind::kWrongType, key, given);
  }
  if (!std::isfinite(number)) return refuse(Kind::kBadValue, key, given);
  if (!in_range(key.allowed, number)) return refuse(Kind::kOutOfRange, key, given);
  return accept(number, note);
}

CheckedValue check_choice(const Key& key, const json& given) {
  if (!given.is_string()) return refuse(Kind::kWrongType, key, given);
  const auto word = given.get<std::string>();
  const auto words = words_of(key.allowed);
  for (const auto& candidate : words) {
    if (candidate == word || (key.type == Type::kChoiceAnyCase && lower(candidate) == lower(word))) return accept(candidate);
  }
  auto refused = refuse(Kind::kBadValue, key, given);
  const std::string hint = base::nearest(word, words);
  if (!hint.empty()) refused.issue->message += str("; did you mean \"", hint, "\"?");
  return refused;
}

CheckedValue check_list(const Key& key, const json& given, bool typed) {
  if (!given.is_array()) return refuse(Kind::kWrongType, key, given);
  json list = json::array();
  for (const auto& item : given) {
    CheckedValue checked = key.type == Type::kTextList
                               ? (item.is_string() ? accept(item) : refuse(Kind::kWrongType, key, given))
                               : (key.type == Type::kIntegerList ? check_integer(key, item, typed) : check_number(key, item, typed));
    if (checked.issue) {
      checked.issue->message = str("got ", shown(given), ", allowed ", allowed_text(key));
      return checked;
    }
    list.push_back(std::move(checked.value));
  }
  return accept(std::move(list));
}

}  // namespace

CheckedValue check_value(const Key& key, const json& given, bool typed) {
  switch (key.type) {
    case Type::kBool:
      return check_bool(key, given, typed);
    case Type::kInteger:
      return check_integer(key, given, typed);
    case Type::kNumber:
      return check_number(key, given, typed);
    case Type::kText:
      return given.is_string() ? accept(given) : refuse(Kind::kWrongType, key, given);
    case Type::kChoice:
    case Type::kChoiceAnyCase:
      return check_choice(key, given);
    case Type::kTextList:
    case Type::kIntegerList:
    case Type::kNumberList:
      return check_list(key, given, typed);
    case Type::kNumberOrList:
      return given.is_array() ? check_list(key, given, typed) : check_number(key, given, typed);
    case Type::kAny:
      if (const auto where = find_not_finite(given)) {
        return {
            nullptr,
            ConfigIssue{Kind::kBadValue, "", str("got a number that is not finite at ", key.path, *where, ", allowed finite numbers"), ""},
            ""};
      }
      return accept(given);
    case Type::kSection:
      break;
  }
  return given.is_object() ? accept(given) : refuse(Kind::kWrongType, key, given);
}

std::string shown(const json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    return std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  }
  constexpr size_t kLongest = 80;
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kLongest) {
    size_t cut = kLongest;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;  // not inside a character
    text = text.substr(0, cut) + "...";
  }
  return text;
}

std::string allowed_text(const Key& key) {
  const auto with_range = [&](const char* what) { return key.allowed.empty() ? std::string(what) : str(what, " ", key.allowed); };
  switch (key.type) {
    case Type::kSection:
      return "an object { }";
    case Type::kBool:
      return "true or false";
    case Type::kInteger:
      return with_range("an integer");
    case Type::kNumber:
      return with_range("a finite number");
    case Type::kText:
      return "text in quotes";
    case Type::kChoice:
      return std::string(key.allowed);
    case Type::kChoiceAnyCase:
      return str(key.allowed, " (any case)");
    case Type::kTextList:
      return "a list of texts";
    case Type::kIntegerList:
      return with_range("a list of integers");
    case Type::kNumberList:
      return with_range("a list of finite numbers");
    case Type::kNumberOrList:
      return with_range("a finite number") + ", or a list of one per parameter group";
    case Type::kAny:
      break;
  }
  return "any value";
}

json fallback_of(const Key& key) { return key.fallback.empty() ? json() : json::parse(key.fallback); }

std::optional<std::string> find_not_finite(const json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "";
  if (value.is_array() || value.is_object()) {
    for (const auto& [name, item] : value.items()) {
      if (const auto inner = find_not_finite(item)) return (value.is_array() ? "[" + name + "]" : "." + name) + *inner;
    }
  }
  return std::nullopt;
}

}  // namespace deepspeed::config
