// Turning token ids back into text with a Hugging Face tokenizer.json. Decoding only.
//
// Understands what language models' files hold: a vocabulary (BPE, WordLevel, Unigram), added tokens and the decoders ByteLevel,
// Metaspace, ByteFallback, Fuse, Strip, Replace (of plain text) and Sequence. Anything else is an Error that names it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::formats {

// One stage of a decoder: tokens in, tokens out; the text is what is left, joined.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

// Thread safe after construction.
class TokenizerJson {
 public:
  // Reads a file. Throws Error(kFile) or Error(kModelFormat).
  explicit TokenizerJson(const std::string& path);
  // Parses text; `source` names it in errors.
  static TokenizerJson parse(std::string_view json, const std::string& source);

  // Text of `ids`, always valid UTF-8: bytes that are not become U+FFFD. Unknown ids give nothing. `skip_special` leaves tokens out that the
  // file marks as special (end of text, padding).
  std::string decode(std::span<const int64_t> ids, bool skip_special = true) const;

  // Largest id + 1.
  int64_t vocabulary_size() const { return static_cast<int64_t>(tokens_.size()); }
  // Id of a token as spelled in the file, -1 when there is none.
  int64_t id_of(std::string_view token) const;

 private:
  struct Token {
    std::string text;
    bool known = false;
    bool special = false;
  };

  TokenizerJson() = default;
  void load(std::string_view json, const std::string& source);

  std::vector<Token> tokens_;  // by id
  std::vector<std::shared_ptr<const DecoderStep>> steps_;
  bool join_with_spaces_ = false;  // the file names no decoder
};

}  // namespace deepspeed::formats
