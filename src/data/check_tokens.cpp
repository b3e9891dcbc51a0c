#include "data/check_tokens.h"

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::data {

void check_tokens(std::span<const int64_t> tokens, int64_t vocab_size, const std::string& source, int64_t row) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && (vocab_size == 0 || tokens[i] < vocab_size)) continue;
    throw Error(ErrorCode::kDataFormat, "data",
                base::str("token ", i, " of row ", row, " in ", source, ": got ", tokens[i], ", allowed ",
                          vocab_size == 0 ? "0 or more" : base::str("0 to ", vocab_size - 1, " (was it made with another tokenizer?)")));
  }
}

}  // namespace deepspeed::data
