#include "optim/run_layout.h"

#include <algorithm>

namespace deepspeed::optim {

RunLayout run_layout(const tensor::UnitLayout& unit, tensor::Range range) {
  RunLayout layout;
  layout.elements = range.size();
  layout.begin = range.begin;
  layout.slots = unit.slots();
  for (const auto& slot : unit.slots()) {
    const int64_t begin = std::clamp(slot.offset, range.begin, range.end);
    const int64_t end = std::clamp(slot.offset + slot.elements, range.begin, range.end);
    layout.segments.push_back({begin - range.begin, end - range.begin});
  }
  return layout;
}

}  // namespace deepspeed::optim
