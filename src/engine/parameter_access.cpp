// Values, gradients and optimizer states of single parameters, put together from the parts that ranks hold, and back.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "engine/engine_impl.h"
#include "optim/state_names.h"
#include "zero/interception.h"

namespace deepspeed::engine {
namespace {

std::string call_name(const char* verb, Quantity quantity, Extent extent) {
  const char* what = quantity == Quantity::kParameter ? "_fp32_param" : quantity == Quantity::kGradient ? "_grad" : "_optimizer_state";
  return base::str("safe_", verb, extent == Extent::kFull ? "_full" : "_local", what);
}

// The elements of a parameter that lie in a shard; where there are none, the shard's beginning.
tensor::Range overlap(tensor::Range parameter, tensor::Range shard) {
  const tensor::Range range{std::max(parameter.begin, shard.begin), std::min(parameter.end, shard.end)};
  return range.begin < range.end ? range : tensor::Range{shard.begin, shard.begin};
}

tensor::Range range_of(const tensor::Slot& slot) { return {slot.offset, slot.offset + slot.elements}; }

}  // namespace

const std::unordered_map<const c10::TensorImpl*, EngineImpl::Place>& EngineImpl::places() {
  if (!places_.empty()) return places_;
  size_t trained = 0;
  for (const auto& unit : units_) {
    for (size_t slot = 0; slot < unit->parameters().size(); ++slot) {
      Place place{unit.get(), slot, {}};
      if (unit->trainable()) place.trained = trained;
      places_[unit->parameters()[slot].unsafeGetTensorImpl()] = place;
    }
    if (unit->trainable()) ++trained;
  }
  return places_;
}

EngineImpl::Place EngineImpl::place_of(const at::Tensor& parameter, const char* call) {
  const auto found = places().find(parameter.unsafeGetTensorImpl());
  if (found == places().end()) {
    throw Error(ErrorCode::kUsage, "engine",
                base::str(call, ": got a tensor that is no parameter of this engine, allowed the parameters of its module"));
  }
  return found->second;
}

EngineImpl::Held EngineImpl::held(const Place& place, Quantity quantity, const std::string& state, const std::string& call) {
  const zero::Unit& unit = *place.unit;
  const std::string& name = unit.layout().slots()[place.slot].name;
  if (!place.trained) {
    if (quantity == Quantity::kParameter) return {unit.always_whole() ? unit.flat() : unit.shard(), !unit.always_whole()};
    throw Error(ErrorCode::kUsage, "engine",
                base::str(call, ": got a frozen parameter, allowed parameters that require a gradient (parameter ", name, ")"));
  }
  const size_t t = *place.trained;
  const bool cut = policy_.shard_optimizer;
  switch (quantity) {
    case Quantity::kParameter:
      return {masters_[t], cut};
    case Quantity::kGradient:
      if (!gradients_->reduced(t)) {
        throw Error(ErrorCode::kUsage, "engine",
                    base::str(call, ": got a call while no gradient of all ranks is at hand, allowed between ",
                              policy_.shard_gradients ? "backward()" : "the backward() of the accumulation boundary",
                              " and the step that uses it (parameter ", name, ", rank ", communicator_->rank(), ")"));
      }
      return {cut ? gradients_->shard_gradient(t) : gradients_->whole_gradient(t), cut, gradient_factor()};
    case Quantity::kState:
      break;
  }
  const auto& names = state_names();
  // A unit may have the first of them only (Muon's matrices).
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(optimizer_->states().count(t));
  const auto found = std::find_if(names.begin(), end, [&](const std::string& own) {
    const auto all = optim::names_of_state(own);
    return std::find(all.begin(), all.end(), state) != all.end();
  });
  if (found == end) {
    throw Error(ErrorCode::kUsage, "engine",
                base::str(call, ": got the state \"", state, "\", allowed for ", config_.optimizer.type, ": ",
                          end == names.begin() ? std::string("none") : base::join(std::vector<std::string>(names.begin(), end), ", "),
                          " (parameter ", name, ")"));
  }
  return {optimizer_->states().get(t, static_cast<size_t>(found - names.begin())), cut};
}

// The parameter's elements in this rank's part of the unit, counted from the start of the unit.
tensor::Range EngineImpl::own_range(const Place& place, bool cut) const {
  const auto& layout = place.unit->layout();
  const auto whole = range_of(layout.slots()[place.slot]);
  return cut ? overlap(whole, layout.shard(communicator_->rank())) : whole;
}

at::Tensor EngineImpl::read(const at::Tensor& parameter, Quantity quantity, const std::string& state, Extent extent) {
  at::NoGradGuard no_grad;
  zero::InterceptionOff off;
  const std::string call = call_name("get", quantity, extent);
  const Place place = place_of(parameter, call.c_str());
  const Held source = held(place, quantity, state, call);
  const auto& layout = place.unit->layout();
  const auto& slot = layout.slots()[place.slot];
  const int64_t first = source.cut ? layout.shard(communicator_->rank()).begin : 0;
  const auto range = own_range(place, source.cut);
  const auto own = source.tensor.narrow(0, range.begin - first, range.size());
  at::Tensor values;
  if (extent == Extent::kLocal || !source.cut) {
    values = own.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (extent == Extent::kFull) values = values.view(slot.shape);
  } else {
    values = at::empty({slot.elements}, own.options().dtype(at::kFloat));
    for (int rank = 0; rank < communicator_->size(); ++rank) {
      const auto part = overlap(range_of(slot), layout.shard(rank));
      if (part.size() == 0) continue;
      const auto target = values.narrow(0, part.begin - slot.offset, part.size());
      if (rank == communicator_->rank()) target.copy_(own);
      if (communicator_->size() > 1) communicator_->broadcast(target, rank, base::str(call, " of ", slot.name))->wait();
    }
    values = values.view(slot.shape);
  }
  return source.factor == 1.0 ? values : values.mul_(source.factor);
}

void EngineImpl::write(const at::Tensor& parameter, Quantity quantity, const std::string& state, Extent extent, const at::Tensor& value) {
  at::NoGradGuard no_grad;
  zero::InterceptionOff off;
  const std::string call = call_name("set", quantity, extent);
  const Place place = place_of(parameter, call.c_str());
  const Held target = held(place, quantity, state, call);
  const auto& slot = place.unit->layout().slots()[place.slot];
  const auto range = own_range(place, target.cut);
  const std::vector<int64_t> shape = extent == Extent::kFull ? slot.shape : std::vector<int64_t>{range.size()};
  if (!value.defined() || value.sizes() != at::IntArrayRef(shape) || !at::isFloatingType(value.scalar_type())) {
    throw Error(ErrorCode::kUsage, "engine",
                base::str(call, ": got ", value.defined() ? base::str(c10::toString(value.scalar_type()), " ", value.sizes()) : "no tensor",
                          ", allowed a floating type of shape ", at::IntArrayRef(shape), " (parameter ", slot.name, ", rank ",
                          communicator_->rank(), ")"));
  }
  if (quantity == Quantity::kParameter) {
    write_parameter(place, extent, value);
    return;
  }
  if (quantity == Quantity::kGradient) gradients_->changed(*place.trained);
  if (range.size() == 0) return;
  const auto flat = value.detach().to(target.tensor.device(), at::kFloat).reshape({-1});
  const auto part = extent == Extent::kFull ? flat.narrow(0, range.begin - slot.offset, range.size()) : flat;
  const int64_t first = target.cut ? place.unit->layout().shard(communicator_->rank()).begin : 0;
  const auto own = target.tensor.narrow(0, range.begin - first, range.size());
  own.copy_(part);
  if (target.factor != 1.0) own.div_(target.factor);
}

// Masters and working copies, wherever they lie: on this rank, on its peers, in memory of all.
void EngineImpl::write_parameter(const Place& place, Extent extent, const at::Tensor& value) {
  zero::Unit& unit = *place.unit;
  const auto& slot = unit.layout().slots()[place.slot];
  const auto shard = unit.layout().shard(communicator_->rank());
  if (residency_) residency_->release_all();
  // Peers may still read what is overwritten here.
  if (unit.shared()) communicator_->barrier(base::str("before setting ", slot.name));
  const bool held_whole = !place.trained ? unit.always_whole() : !policy_.shard_optimizer;
  const auto owned = own_range(place, !held_whole);
  const auto flat = value.detach().to(unit.device(), at::kFloat).reshape({-1});
  // `flat` holds the elements [from, ...) of the unit.
  const int64_t from = extent == Extent::kFull ? slot.offset : owned.begin;
  const auto put = [&](const at::Tensor& target, tensor::Range range, int64_t target_begin) {
    if (range.size() > 0)
      target.narrow(0, range.begin - target_begin, range.size()).copy_(flat.narrow(0, range.begin - from, range.size()));
  };
  if (place.trained) put(masters_[*place.trained], owned, held_whole ? 0 : shard.begin);
  const bool own_copy = unit.always_whole() && !unit.shared();
  if (own_copy && (extent == Extent::kFull || held_whole)) {
    put(unit.flat(), range_of(slot), 0);
  } else if (unit.shared() && held_whole) {
    // A frozen unit in memory of all: each rank writes its own shard of it.
    put(unit.shard(), overlap(range_of(slot), shard), shard.begin);
  } else {
    put(unit.shard(), owned, shard.begin);
    if (own_copy && communicator_->size() > 1) {
      communicator_->all_gather(unit.flat(), unit.shard(), base::str("set values of ", slot.name))->wait();
    }
  }
  if (unit.shared()) communicator_->barrier(base::str("after setting ", slot.name));
}

}  // namespace deepspeed::engine
