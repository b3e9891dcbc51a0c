#include "zero/residency.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "accel/pool.h"
#include "base/check.h"
#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::zero {
namespace {

bool contains(Unit* const* units, size_t count, const Unit* unit) { return std::find(units, units + count, unit) != units + count; }

}  // namespace

Residency::Residency(std::vector<Unit*> sharded_units, std::shared_ptr<Communicator> communicator, const Config::Zero& limits)
    : units_(std::move(sharded_units)), communicator_(std::move(communicator)), limits_(limits) {
  int last = -1;
  for (const Unit* unit : units_) last = std::max(last, unit->id());
  states_.resize(static_cast<size_t>(last + 1));
  for (Unit* unit : units_) register_storage(unit->storage(), this, unit);
}

Residency::~Residency() { unregister_owner(this); }

void Residency::make_whole(Unit* const* units, size_t count) {
  ++clock_;
  const bool recording = in_backward_ || at::GradMode::is_enabled();
  for (size_t i = 0; i < count; ++i) {
    Unit* unit = units[i];
    State& state = state_of(unit);
    state.last_use = clock_;
    if (recording && (pass_.empty() || pass_.back() != unit)) {
      record(unit);
      if (following_) drop_far_uses(units, count);
    }
    if (!unit->whole() && !state.pending) {
      make_room(unit->elements(), units, count);
      if (!following_) compare_ranks(unit);
      start_gather(unit);
    }
    if (recording && following_) prefetch();
    if (state.pending) finish_gather(unit);
  }
}

void Residency::record(Unit* unit) {
  const size_t position = pass_.size();
  if (position == 0) following_ = !trace_.empty();
  if (following_ && (position >= trace_.size() || trace_[position] != unit)) {
    following_ = false;
    ++statistics_.diverged;
  }
  pass_.push_back(unit);
}

void Residency::end_backward() {
  in_backward_ = false;
  trace_.swap(pass_);
  pass_.clear();
  following_ = false;
}

void Residency::start_gather(Unit* unit) {
  unit->allocate();
  live_elements_ += unit->elements();
  in_flight_elements_ += unit->elements();
  statistics_.peak_live = std::max(statistics_.peak_live, live_elements_);
  ++statistics_.gathers;
  state_of(unit).pending = communicator_->all_gather(unit->flat(), unit->shard(), unit->label());
}

void Residency::finish_gather(Unit* unit) {
  State& state = state_of(unit);
  const auto pending = std::move(state.pending);
  in_flight_elements_ -= unit->elements();
  pending->wait();
}

void Residency::compare_ranks(const Unit* unit) {
  if (communicator_->size() == 1) return;
  InterceptionOff off;
  const auto device = unit->device();
  auto mine = accel::pooled_empty(1, at::kLong, c10::Device(c10::DeviceType::CPU));
  *mine.mutable_data_ptr<int64_t>() = unit->id();
  auto all = accel::pooled_empty(communicator_->size(), at::kLong, device);
  communicator_->all_gather(all, device.is_cpu() ? mine : mine.to(device), "unit to gather")->wait();
  const auto host = device.is_cpu() ? all : all.cpu();
  const auto* values = host.const_data_ptr<int64_t>();
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    if (values[rank] == unit->id()) continue;
    const auto other = std::find_if(units_.begin(), units_.end(), [&](const Unit* u) { return u->id() == values[rank]; });
    throw Error(ErrorCode::kCommMismatch, "zero",
                base::str("gathering parameters: got ", unit->label(), " on rank ", communicator_->rank(), " and ",
                          other == units_.end() ? base::str("unit ", values[rank]) : (*other)->label(), " on rank ", rank,
                          ", allowed the same on all: in stage 3 every rank must use the same parameters in the same order"));
  }
}

void Residency::prefetch() {
  for (size_t next = pass_.size(); next < trace_.size(); ++next) {
    if (in_flight_elements_ >= limits_.prefetch_bucket_size) return;
    Unit* unit = trace_[next];
    if (unit->whole() || state_of(unit).pending) continue;
    if (live_elements_ + unit->elements() > limits_.max_live_parameters) return;
    start_gather(unit);
    ++statistics_.prefetched;
  }
}

int64_t Residency::distance_to_next_use(const Unit* unit) const {
  if (!following_) return std::numeric_limits<int64_t>::max();
  int64_t elements = 0;
  for (size_t next = pass_.size(); next < trace_.size(); ++next) {
    if (trace_[next] == unit) return elements;
    elements += trace_[next]->elements();
  }
  return std::numeric_limits<int64_t>::max();
}

void Residency::drop_far_uses(Unit* const* keep, size_t keep_count) {
  if (pass_.size() < 2) return;
  Unit* previous = pass_[pass_.size() - 2];
  if (contains(keep, keep_count, previous) || !previous->whole()) return;
  const int64_t distance = distance_to_next_use(previous);
  if (distance != std::numeric_limits<int64_t>::max() && distance > limits_.max_reuse_distance) release(previous);
}

void Residency::make_room(int64_t elements, Unit* const* keep, size_t keep_count) {
  while (live_elements_ + elements > limits_.max_live_parameters) {
    // The one needed last goes first; without a trace, the one not used for longest.
    Unit* victim = nullptr;
    int64_t victim_distance = -1;
    for (Unit* unit : units_) {
      const State& state = state_of(unit);
      if (!unit->whole() || state.pending || state.pins > 0 || contains(keep, keep_count, unit)) continue;
      const int64_t distance = distance_to_next_use(unit);
      if (!victim || distance > victim_distance || (distance == victim_distance && state.last_use < state_of(victim).last_use)) {
        victim = unit;
        victim_distance = distance;
      }
    }
    if (!victim) return;
    release(victim);
  }
}

void Residency::release(Unit* unit) {
  State& state = state_of(unit);
  if (!unit->whole() || state.pins > 0) return;
  if (state.pending) finish_gather(unit);
  live_elements_ -= unit->elements();
  unit->release();
}

void Residency::release_all() {
  for (Unit* unit : units_) release(unit);
}

void Residency::pin(Unit* unit) {
  Unit* const units[] = {unit};
  State& state = state_of(unit);
  if (!unit->whole()) {
    make_room(unit->elements(), units, 1);
    compare_ranks(unit);
    start_gather(unit);
  }
  if (state.pending) finish_gather(unit);
  ++state.pins;
}

void Residency::unpin(Unit* unit) {
  State& state = state_of(unit);
  DS_CHECK(state.pins > 0, unit->label());
  --state.pins;
}

}  // namespace deepspeed::zero
