#include "tensor/unit_layout.h"

#include "base/check.h"

namespace deepspeed::tensor {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

UnitLayout::UnitLayout(std::vector<Slot> slots, int world_size) : slots_(std::move(slots)) {
  DS_CHECK(world_size >= 1, "world ", world_size);
  int64_t end = 0;
  for (Slot& slot : slots_) {
    slot.offset = round_up(end, kAlignment);
    if (slot.offset > end) gaps_.push_back({end, slot.offset});
    end = slot.offset + slot.elements;
    elements_ += slot.elements;
  }
  shard_ = round_up((end + world_size - 1) / world_size, kAlignment);
  padded_ = shard_ * world_size;
  if (padded_ > end) gaps_.push_back({end, padded_});
}

}  // namespace deepspeed::tensor
