#include "zero/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cstring>

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
           bool trainable, int group, bool always_whole, SharedPlace place)
    : id_(id),
      layout_(std::move(layout)),
      parameters_(std::move(parameters)),
      type_(type),
      device_(device),
      rank_(rank),
      trainable_(trainable),
      group_(group),
      always_whole_(always_whole || place.memory),
      place_(std::move(place)),
      label_(label_of(id, layout_)) {
  at::NoGradGuard no_grad;
  flat_ = shared() ? accel::tensor_over(shared_bytes(0), layout_.padded_elements(), type_)
                   : accel::pooled_empty(layout_.padded_elements(), type_, device_);
  whole_ = true;
  const bool fills = !shared() || rank_ == 0;
  if (fills) {
    for (const auto& gap : layout_.gaps()) flat_.narrow(0, gap.begin, gap.size()).zero_();
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& slot = layout_.slots()[i];
    const auto view = flat_.narrow(0, slot.offset, slot.elements).view(slot.shape);
    if (fills) view.copy_(parameters_[i].detach());
    parameters_[i].set_data(view);
  }
}

at::DataPtr Unit::shared_bytes(size_t offset) const {
  auto* owner = new std::shared_ptr<SharedMemory>(place_.memory);
  return at::DataPtr(
      place_.memory->data() + place_.offset + offset, owner,
      [](void* context) { delete static_cast<std::shared_ptr<SharedMemory>*>(context); }, device_);
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
  if (shared()) {
    // Of its own storage, as flat's may be exchanged for a private copy.
    shard_ = accel::tensor_over(shared_bytes(static_cast<size_t>(range.begin) * c10::elementSize(type_)), range.size(), type_);
    return;
  }
  if (always_whole_) {
    shard_ = view;
    return;
  }
  shard_ = accel::pooled_empty(range.size(), type_, device_);
  shard_.copy_(view);
  release();
}

void Unit::isolate() {
  DS_CHECK(shared(), label_);
  const auto bytes = static_cast<size_t>(layout_.padded_elements()) * c10::elementSize(type_);
  auto own = accel::pooled_bytes(bytes, device_);
  if (bytes > 0) std::memcpy(own.get(), place_.memory->data() + place_.offset, bytes);
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(own));
}

void Unit::rejoin() {
  DS_CHECK(shared(), label_);
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(shared_bytes(0));
}

void Unit::update_shard_from_whole() {
  DS_CHECK(whole_, label_);
  if (always_whole_ && !shared()) return;
  const auto range = layout_.shard(rank_);
  shard_.copy_(flat_.narrow(0, range.begin, range.size()));
}

}  // namespace deepspeed::zero
