// Tokens of a batch against the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace deepspeed::data {

// Throws Error(kDataFormat) naming `source` and the row for a token outside [0, vocab_size); vocab_size 0 allows any that is not negative.
void check_tokens(std::span<const int64_t> tokens, int64_t vocab_size, const std::string& source, int64_t row);

}  // namespace deepspeed::data
