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

struct SyntaxError {
  std::string message;
  size_t offset;
};

// Recursive descent over the bytes of the text. A further dialect hooks in at key(), value() and skip_blank().
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {
    if (text_.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;
  }

  json whole() {
    skip_blank();
    if (at_ == text_.size()) fail("the text is empty, an object { } is needed");
    json result = value("", 0);
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
      default:
        return word_or_number();
    }
  }

  json object(const std::string& path, int depth) {
    json result = json::object();
    ++at_;
    for (;;) {
      skip_blank();
      if (take("}")) return result;
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
      skip_blank();
      if (take(",")) continue;
      if (peek() != '}') fail(str("expected \",\" or \"}\", found ", shown()));
    }
  }

  std::string key() {
    if (peek() != '"') fail(str("expected a key in double quotes, found ", shown()));
    return text();
  }

  json list(const std::string& path, int depth) {
    json result = json::array();
    ++at_;
    for (;;) {
      skip_blank();
      if (take("]")) return result;
      result.push_back(value(str(path, "[", result.size(), "]"), depth + 1));
      skip_blank();
      if (take(",")) continue;
      if (peek() != ']') fail(str("expected \",\" or \"]\", found ", shown()));
    }
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
    ++at_;
    for (;;) {
      if (at_ >= text_.size()) fail("a string is never closed");
      const auto byte = static_cast<unsigned char>(text_[at_]);
      if (byte == '"') {
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
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
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
