#include "formats/decoder_steps.h"

namespace deepspeed::formats {

size_t utf8_length(std::string_view text, size_t at, size_t* seen) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  *seen = 1;
  if (lead < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // allowed second byte: shuts out overlong forms, surrogates and what is above U+10FFFF
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return 0;
    low = 0x80;
    high = 0xBF;
    *seen = i + 1;
  }
  return length;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0, seen = 0; at < text.size();) {
    const size_t length = utf8_length(text, at, &seen);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0, seen = 0; at < text.size();) {
    const size_t length = utf8_length(text, at, &seen);
    if (length > 0) {
      out.append(text, at, length);
      at += length;
    } else {
      out += "\xEF\xBF\xBD";
      at += seen;
    }
  }
  return out;
}

}  // namespace deepspeed::formats
