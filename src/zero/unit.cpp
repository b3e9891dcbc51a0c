#include "zero/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "accel/pool.h"
#include "base/check.h"
#include "base/text.h"

namespace deepspeed::zero {
namespace {

std::string label_of(int id, const tensor::UnitLayout& layout) {
  const auto& slots = layout.slots();
  if (slots.size() == 1) return base::str("unit ", id, " (", slots[0].name, ")");
  return base::str("unit ", id, " (", slots[0].name, " and ", slots.size() - 1, " more)");
}

}  // namespace

Unit::Unit(int id, tensor::UnitLayout layout, std::vector<at::Tensor> parameters, at::ScalarType type, c10::Device device, int rank,
           bool trainable, int group, bool always_whole)
    : id_(id),
      layout_(std::move(layout)),
      parameters_(std::move(parameters)),
      type_(type),
      device_(device),
      rank_(rank),
      trainable_(trainable),
      group_(group),
      always_whole_(always_whole),
      label_(label_of(id, layout_)) {
  at::NoGradGuard no_grad;
  flat_ = accel::pooled_empty(layout_.padded_elements(), type_, device_);
  whole_ = true;
  for (const auto& gap : layout_.gaps()) flat_.narrow(0, gap.begin, gap.size()).zero_();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    const auto view = flat_.narrow(0, slot.offset, slot.elements).view(slot.shape);
    view.copy_(parameters_[i].detach());
    parameters_[i].set_data(view);
  }
}

void Unit::allocate() {
  if (whole_) return;
  const auto bytes = static_cast<size_t>(layout_.padded_elements()) * c10::elementSize(type_);
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(accel::pooled_bytes(bytes, device_));
  whole_ = true;
}

void Unit::release() {
  if (always_whole_ || !whole_) return;
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, device_));
  whole_ = false;
}

void Unit::adopt_shard() {
  DS_CHECK(whole_ && !shard_.defined(), label_);
  const auto range = layout_.shard(rank_);
  const auto view = flat_.narrow(0, range.begin, range.size());
  if (always_whole_) {
    shard_ = view;
    return;
  }
  shard_ = accel::pooled_empty(range.size(), type_, device_);
  shard_.copy_(view);
  release();
}

void Unit::update_shard_from_whole() {
  DS_CHECK(whole_, label_);
  if (always_whole_) return;
  const auto range = layout_.shard(rank_);
  shard_.copy_(flat_.narrow(0, range.begin, range.size()));
}

}  // namespace deepspeed::zero
