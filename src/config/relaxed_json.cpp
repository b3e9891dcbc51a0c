#include "config/relaxed_json.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/text.h"

namespace deepspeed::config {

namespace {

using base::str;
using nlohmann::json;

constexpr int kDeepest = 64;  // nesting; far above any real file, far below what recursion can take

constexpr std::string_view kThreeQuotes = "'''";

struct SyntaxError {
  std::string message;
  size_t offset;
};

// Recursive descent over the bytes of the text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;
  }

  json whole() {
    skip_blank();
    if (at_ == text_.size()) fail("the text is empty, an object { } is needed");
    json result = without_braces() ? members("", 0, '\0') : value("", 0);
    skip_blank();
    if (at_ != text_.size()) fail(str("unexpected ", shown(), " after the end of the configuration"));
    return result;
  }

  std::string place(size_t offset) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < offset && i < text_.size(); ++i) {
      if (text_[i] == '\n') {
        ++line;
        column = 1;
      } else {
        ++column;
      }
    }
    return str("line ", line, ", column ", column);
  }

  std::vector<ConfigIssue> duplicates;

 private:
  [[noreturn]] void fail(std::string message) const { throw SyntaxError{std::move(message), at_}; }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  std::string shown() const {
    if (at_ >= text_.size()) return "end of text";
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte < 0x20 || byte >= 0x7F) return str("byte ", static_cast<int>(byte));
    return str("\"", text_[at_], "\"");
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  void skip_line() {
    while (at_ < text_.size() && text_[at_] != '\n') ++at_;
  }

  void skip_blank() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else if (c == '#' || text_.substr(at_, 2) == "//") {
        skip_line();
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) fail("a comment /* is never closed");
        at_ = end + 2;
      } else {
        return;
      }
    }
  }

  json value(const std::string& path, int depth) {
    if (depth > kDeepest) fail(str("more than ", kDeepest, " levels of nesting"));
    switch (peek()) {
      case '{':
        return object(path, depth);
      case '[':
        return list(path, depth);
      case '"':
        return text();
      case '\'':
        if (text_.substr(at_, kThreeQuotes.size()) == kThreeQuotes) return lines();
        return text();
      default:
        return plain();
    }
  }

  // Whether the text begins with a key: the braces of the outermost object are left out.
  bool without_braces() {
    const size_t start = at_;
    const char first = peek();
    bool found = false;
    if (first != '{' && first != '[') {
      try {
        key();
        skip_blank();
        found = peek() == ':';
      } catch (const SyntaxError&) {
      }
    }
    at_ = start;
    return found;
  }

  json object(const std::string& path, int depth) {
    ++at_;
    return members(path, depth, '}');
  }

  // Up to and with `close`; '\0': up to the end of the text.
  json members(const std::string& path, int depth, char close) {
    json result = json::object();
    for (;;) {
      skip_blank();
      if (ends(close)) return result;
      const size_t key_offset = at_;
      std::string name = key();
      const std::string full = path.empty() ? name : path + "." + name;
      skip_blank();
      if (!take(":")) fail(str("expected \":\" after key \"", name, "\", found ", shown()));
      skip_blank();
      json item = value(full, depth + 1);
      if (result.contains(name)) {
        duplicates.push_back({ConfigIssue::Kind::kDuplicateKey, full,
                              str("got the key \"", name, "\" again at ", place(key_offset), ", allowed once in an object"), ""});
      } else {
        result[std::move(name)] = std::move(item);
      }
      separator(close);
    }
  }

  // In quotes, or a run of characters that end neither a key nor a value.
  std::string key() {
    if (peek() == '"' || peek() == '\'') return text();
    constexpr std::string_view kEnds = ",:{}[]\"'#/";
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] > ' ' && text_[at_] < 0x7F && kEnds.find(text_[at_]) == std::string_view::npos) ++at_;
    if (at_ == start) fail(str("expected a key, found ", shown()));
    return std::string(text_.substr(start, at_ - start));
  }

  json list(const std::string& path, int depth) {
    json result = json::array();
    ++at_;
    for (;;) {
      skip_blank();
      if (ends(']')) return result;
      result.push_back(value(str(path, "[", result.size(), "]"), depth + 1));
      separator(']');
    }
  }

  bool ends(char close) {
    if (close == '\0') return at_ == text_.size();
    return take(std::string_view(&close, 1));
  }

  // A comma, or the end of a line in its place.
  void separator(char close) {
    const size_t start = at_;
    skip_blank();
    if (take(",")) return;
    if (close == '\0' ? at_ == text_.size() : peek() == close) return;
    if (at_ < text_.size() && text_.substr(start, at_ - start).find('\n') != std::string_view::npos) return;
    if (close == '\0') fail(str("expected \",\" or a new line, found ", shown()));
    fail(str("expected \",\" or \"", close, "\", found ", shown()));
  }

  // A word of JSON, a number, or text without quotes, which runs to the end of its line.
  json plain() {
    const size_t start = at_;
    try {
      json result = word_or_number();
      const size_t end = at_;
      while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
      constexpr std::string_view kMayFollow = "\n,}]#/";
      if (at_ == text_.size() || kMayFollow.find(peek()) != std::string_view::npos) {
        at_ = end;
        return result;
      }
    } catch (const SyntaxError&) {
    }
    at_ = start;
    constexpr std::string_view kNeverFirst = "{}[],:";
    if (at_ == text_.size() || kNeverFirst.find(peek()) != std::string_view::npos) fail(str("expected a value, found ", shown()));
    std::string result;
    while (at_ < text_.size() && text_[at_] != '\n') {
      if (static_cast<unsigned char>(text_[at_]) >= 0x80) {
        utf8(result);
      } else {
        result += text_[at_++];
      }
    }
    while (!result.empty() && (result.back() == ' ' || result.back() == '\t' || result.back() == '\r')) result.pop_back();
    // Almost surely a mistake in ordinary JSON, which would otherwise be reported at some later place.
    constexpr std::string_view kNeverLast = ",}]";
    if (result.find('"') != std::string::npos || kNeverLast.find(result.back()) != std::string_view::npos) {
      at_ = start;
      fail(str("expected a value; text without quotes runs to the end of its line, got ", result.substr(0, 40)));
    }
    return result;
  }

  json word_or_number() {
    if (take("true")) return ended(true);
    if (take("false")) return ended(false);
    if (take("null")) return ended(nullptr);
    if (take("NaN")) return ended(std::numeric_limits<double>::quiet_NaN());
    if (take("-Infinity")) return ended(-std::numeric_limits<double>::infinity());
    if (take("Infinity")) return ended(std::numeric_limits<double>::infinity());
    return number();
  }

  json ended(json word) const {
    const char next = peek();
    if (std::isalnum(static_cast<unsigned char>(next)) || next == '_') fail(str("unexpected ", shown(), " after a value"));
    return word;
  }

  // Between three quotes. A first line break and the last one do not count; lines lose the indentation of the opening quotes.
  std::string lines() {
    const size_t line_break = at_ == 0 ? std::string_view::npos : text_.rfind('\n', at_ - 1);
    const size_t indent = line_break == std::string_view::npos ? at_ : at_ - line_break - 1;
    at_ += kThreeQuotes.size();
    const size_t start = at_;
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
    if (take("\n")) {
      skip_indent(indent);
    } else {
      at_ = start;
    }
    std::string result;
    while (!take(kThreeQuotes)) {
      if (at_ >= text_.size()) fail("a text between three quotes is never closed");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) >= 0x80) {
        utf8(result);
        continue;
      }
      if (c != '\r') result += c;
      ++at_;
      if (c == '\n') skip_indent(indent);
    }
    if (!result.empty() && result.back() == '\n') result.pop_back();
    return result;
  }

  void skip_indent(size_t indent) {
    for (; indent > 0 && (peek() == ' ' || peek() == '\t'); --indent) ++at_;
  }

  size_t digits() {
    const size_t start = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - start;
  }

  json number() {
    const size_t start = at_;
    bool whole = true;
    take("-");
    const char first = peek();
    const size_t count = digits();
    if (count == 0) fail(str("expected a value, found ", shown()));
    if (count > 1 && first == '0') fail("a number must not start with 0");
    if (take(".")) {
      whole = false;
      if (digits() == 0) fail(str("expected a digit after \".\", found ", shown()));
    }
    if (peek() == 'e' || peek() == 'E') {
      whole = false;
      ++at_;
      if (!take("+")) take("-");
      if (digits() == 0) fail(str("expected a digit in the exponent, found ", shown()));
    }
    const std::string token(text_.substr(start, at_ - start));
    if (whole) {
      int64_t integer = 0;
      const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), integer);
      if (error == std::errc() && end == token.data() + token.size()) return ended(integer);
    }
    double real = 0;  // out of range becomes +-HUGE_VAL, which the key's own check refuses as not finite
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), real);
    if (error == std::errc::result_out_of_range) real = std::strtod(token.c_str(), nullptr);
    return ended(real);
  }

  std::string text() {
    std::string result;
    const auto quote = static_cast<unsigned char>(text_[at_++]);
    for (;;) {
      if (at_ >= text_.size()) fail("a string is never closed");
      const auto byte = static_cast<unsigned char>(text_[at_]);
      if (byte == quote) {
        ++at_;
        return result;
      }
      if (byte == '\\') {
        ++at_;
        escape(result);
      } else if (byte < 0x20 && byte != '\t') {
        fail(str("a string must not hold ", shown(), " (a line break needs \\n)"));
      } else if (byte < 0x80) {
        result += text_[at_++];
      } else {
        utf8(result);
      }
    }
  }

  void escape(std::string& result) {
    static constexpr std::string_view kFrom = "\"'\\/bfnrt", kTo = "\"'\\/\b\f\n\r\t";
    const size_t which = kFrom.find(peek());
    if (at_ < text_.size() && which != std::string_view::npos) {
      result += kTo[which];
      ++at_;
    } else if (take("u")) {
      uint32_t code = hex4();
      if (code >= 0xD800 && code < 0xDC00) {
        if (!take("\\u")) fail("half of a surrogate pair");
        const uint32_t low = hex4();
        if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else if (code >= 0xDC00 && code < 0xE000) {
        fail("half of a surrogate pair");
      }
      append_code(result, code);
    } else {
      fail(str("unknown escape \\ with ", shown()));
    }
  }

  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      if (!std::isxdigit(static_cast<unsigned char>(c))) fail(str("expected four hexadecimal digits after \\u, found ", shown()));
      code = code * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return code;
  }

  static void append_code(std::string& result, uint32_t code) {
    if (code < 0x80) {
      result += static_cast<char>(code);
    } else if (code < 0x800) {
      result += static_cast<char>(0xC0 | (code >> 6));
      result += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      result += static_cast<char>(0xE0 | (code >> 12));
      result += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
      result += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      result += static_cast<char>(0xF0 | (code >> 18));
      result += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
      result += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
      result += static_cast<char>(0x80 | (code & 0x3F));
    }
  }

  // Copies one character of several bytes; what is not UTF-8 could not be written to a checkpoint again.
  void utf8(std::string& result) {
    const auto lead = static_cast<unsigned char>(text_[at_]);
    const size_t length = lead >= 0xF0 && lead < 0xF5 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xC2 && lead < 0xE0 ? 2 : 0;
    if (length == 0 || at_ + length > text_.size()) fail("the text is not UTF-8");
    uint32_t code = lead & (0xFFU >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
      const auto byte = static_cast<unsigned char>(text_[at_ + i]);
      if ((byte & 0xC0) != 0x80) fail("the text is not UTF-8");
      code = (code << 6) | (byte & 0x3F);
    }
    const uint32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
    if (code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("the text is not UTF-8");
    result.append(text_, at_, length);
    at_ += length;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

ParsedText parse_relaxed_json(std::string_view text) {
  ParsedText parsed;
  Scanner scanner(text);
  try {
    parsed.value = scanner.whole();
  } catch (const SyntaxError& error) {
    parsed.value = nullptr;
    parsed.issues.push_back({ConfigIssue::Kind::kSyntax, "", str(error.message, " (", scanner.place(error.offset), ")"), ""});
  }
  parsed.issues.insert(parsed.issues.begin(), scanner.duplicates.begin(), scanner.duplicates.end());
  return parsed;
}

}  // namespace deepspeed::config
