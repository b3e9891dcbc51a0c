// Which elements of a flat run belong to which parameter.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/unit_layout.h"

namespace deepspeed::optim {

struct RunLayout {
  int64_t elements = 0;
  // One per parameter of the unit, in order: its elements inside the run. Empty where it has none here. What lies between is filling.
  std::vector<tensor::Range> segments;
  int64_t begin = 0;                // where the run starts in its unit's buffer
  std::vector<tensor::Slot> slots;  // whole parameters and their places in that buffer
  bool matrices = false;            // Muon: every parameter of the unit is one for the matrix rule
};

// The run that holds `range` of a unit's buffer.
RunLayout run_layout(const tensor::UnitLayout& unit, tensor::Range range);

}  // namespace deepspeed::optim
