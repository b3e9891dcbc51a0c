// Differences between two checkpoints, of whatever kind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/source.h"

namespace deepspeed::store {

struct Difference {
  std::string what;  // "value of layer.weight", "run.global_steps"
  std::string text;  // "max |a - b| 0.25 in 3 of 24 elements", "20, 30"
};

struct Comparison {
  std::vector<Difference> differences;
  int64_t tensors = 0;   // compared element by element
  int64_t elements = 0;  // bit for bit the same or not
};

// Values and states by their names, bit for bit as fp32 (a NaN equals the same NaN); buffers as bytes; the run's and the caller's values as JSON.
// Throws what reading throws.
Comparison compare_sources(Source& a, Source& b);

}  // namespace deepspeed::store
