// Choosing the next token from its logits. No torch.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace deepspeed::models {

struct SamplingRule {
  double temperature = 0.0;  // 0: the likeliest token; of equal ones the first
  int64_t top_k = 0;         // 0: all
  double top_p = 1.0;
};

// Draws from `logits` as the rule says; one number of `random` per call, none at temperature 0. The same bits on every machine for equal logits
// and state.
int64_t choose_token(std::span<const float> logits, const SamplingRule& rule, std::mt19937_64& random);

}  // namespace deepspeed::models
