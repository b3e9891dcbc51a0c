// The decoder stages of tokenizer.json. Used by tokenizer_json.cpp only.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer_json.h"

namespace deepspeed::formats {

// Appends the stages that the "decoder" value asks for. Throws Error(kModelFormat) for one that is not known.
void make_decoder_steps(const nlohmann::json& decoder, const std::string& source, std::vector<std::shared_ptr<const DecoderStep>>& steps);

// `text` with every byte run that is not UTF-8 replaced by U+FFFD, one for each maximal beginning of a character.
std::string to_valid_utf8(std::string_view text);
bool is_valid_utf8(std::string_view text);

// Bytes of the character that starts at text[at]; 0 when it is not valid. `seen` is then the length of the beginning that was.
size_t utf8_length(std::string_view text, size_t at, size_t* seen);

}  // namespace deepspeed::formats
