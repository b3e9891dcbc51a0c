#include "formats/decoder_steps.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::string>;

// GPT-2 spells each byte as one printable character: printable Latin-1 bytes as themselves, the other 68 as U+0100 and on, in order.
// Index: code point. Value: byte, or -1.
const std::array<int, 0x144>& byte_of_code_point() {
  static const std::array<int, 0x144> table = [] {
    std::array<int, 0x144> out;
    out.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
      out[static_cast<size_t>(itself ? byte : next++)] = byte;
    }
    return out;
  }();
  return table;
}

// The bytes that a byte-level token spells; empty when it holds a character that spells none (an added token).
std::optional<std::string> spelled_bytes(const std::string& token) {
  std::string out;
  for (size_t at = 0, seen = 0; at < token.size();) {
    const size_t length = utf8_length(token, at, &seen);
    if (length == 0 || length > 2) return std::nullopt;
    const auto lead = static_cast<unsigned char>(token[at]);
    const size_t code = length == 1 ? lead : (static_cast<size_t>(lead & 0x1F) << 6) | (static_cast<unsigned char>(token[at + 1]) & 0x3F);
    if (code >= byte_of_code_point().size() || byte_of_code_point()[code] < 0) return std::nullopt;
    out += static_cast<char>(byte_of_code_point()[code]);
    at += length;
  }
  return out;
}

class ByteLevel : public DecoderStep {
 public:
  void apply(Tokens& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += spelled_bytes(token).value_or(token);
    tokens.assign(1, to_valid_utf8(bytes));
  }
};

// Tokens of the form <0x0A> are bytes. Runs of them that form no text become one U+FFFD a byte.
class ByteFallback : public DecoderStep {
 public:
  void apply(Tokens& tokens) const override {
    Tokens out;
    std::string run;
    const auto flush = [&] {
      if (run.empty()) return;
      if (is_valid_utf8(run)) {
        out.push_back(run);
      } else {
        for (size_t i = 0; i < run.size(); ++i) out.push_back("\xEF\xBF\xBD");
      }
      run.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = byte_value(token); byte >= 0) {
        run += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }

 private:
  static int byte_value(const std::string& token) {
    if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>') return -1;
    const std::string digits = token.substr(3, 2);
    if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return -1;
    return std::stoi(digits, nullptr, 16);
  }
};

class Fuse : public DecoderStep {
 public:
  void apply(Tokens& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens.assign(1, all);
  }
};

class Replace : public DecoderStep {
 public:
  Replace(std::string pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      for (size_t at = token.find(pattern_); at != std::string::npos; at = token.find(pattern_, at + content_.size())) {
        token.replace(at, pattern_.size(), content_);
      }
    }
  }

 private:
  std::string pattern_, content_;
};

// Takes up to `start` copies of a character off the front of each token, up to `stop` off its end.
class Strip : public DecoderStep {
 public:
  Strip(std::string content, int64_t start, int64_t stop) : content_(std::move(content)), start_(start), stop_(stop) {}

  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      for (int64_t i = 0; i < start_ && token.starts_with(content_); ++i) token.erase(0, content_.size());
      for (int64_t i = 0; i < stop_ && token.ends_with(content_); ++i) token.resize(token.size() - content_.size());
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

// The replacement character is a space; in the first token it is nothing where encoding put one before the text.
class Metaspace : public DecoderStep {
 public:
  Metaspace(std::string replacement, bool prepended) : replacement_(std::move(replacement)), prepended_(prepended) {}

  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      Tokens one = {std::move(tokens[i])};
      Replace(replacement_, i == 0 && prepended_ ? "" : " ").apply(one);
      tokens[i] = std::move(one.front());
    }
  }

 private:
  std::string replacement_;
  bool prepended_;
};

}  // namespace

void make_decoder_steps(const json& decoder, const std::string& source, std::vector<std::shared_ptr<const DecoderStep>>& steps) {
  const std::string type = decoder.at("type").get<std::string>();
  if (type == "Sequence") {
    for (const json& inner : decoder.at("decoders")) make_decoder_steps(inner, source, steps);
  } else if (type == "ByteLevel") {
    steps.push_back(std::make_shared<ByteLevel>());
  } else if (type == "ByteFallback") {
    steps.push_back(std::make_shared<ByteFallback>());
  } else if (type == "Fuse") {
    steps.push_back(std::make_shared<Fuse>());
  } else if (type == "Replace" && decoder.at("pattern").contains("String") && decoder["pattern"]["String"] != "") {
    steps.push_back(std::make_shared<Replace>(decoder["pattern"]["String"].get<std::string>(), decoder.at("content").get<std::string>()));
  } else if (type == "Strip" && decoder.at("content") != "") {
    steps.push_back(std::make_shared<Strip>(decoder["content"].get<std::string>(), decoder.at("start").get<int64_t>(),
                                            decoder.at("stop").get<int64_t>()));
  } else if (type == "Metaspace" && decoder.at("replacement") != "") {
    const bool prepended =
        decoder.contains("prepend_scheme") ? decoder["prepend_scheme"] != "never" : decoder.value("add_prefix_space", true);
    steps.push_back(std::make_shared<Metaspace>(decoder["replacement"].get<std::string>(), prepended));
  } else {
    throw Error(ErrorCode::kModelFormat, "tokenizer",
                base::str(source, ": decoder: got ", decoder.dump(),
                          ", allowed ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace of plain text, Sequence"));
  }
}

}  // namespace deepspeed::formats
