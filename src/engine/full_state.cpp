// Whole parameters out of shards, and shards for checkpoints.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "accel/pool.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "engine/engine_impl.h"
#include "zero/interception.h"

namespace deepspeed::engine {

std::vector<EngineImpl::UnitState> EngineImpl::unit_states() {
  std::vector<UnitState> states;
  size_t t = 0;
  for (const auto& unit : units_) {
    UnitState state{unit.get(), unit->shard(), {}};
    if (unit->trainable()) {
      const auto range = unit->layout().shard(communicator_->rank());
      const auto part = [&](const at::Tensor& tensor) {
        return policy_.shard_optimizer ? tensor : tensor.narrow(0, range.begin, range.size());
      };
      state.parameter = part(masters_[t]);
      for (size_t i = 0; i < optimizer_->states().count(t); ++i) state.states.push_back(part(optimizer_->states().get(t, i)));
      ++t;
    }
    states.push_back(std::move(state));
  }
  return states;
}

void EngineImpl::publish_loaded_state() {
  at::NoGradGuard no_grad;
  zero::InterceptionOff off;
  if (residency_) residency_->release_all();
  size_t t = 0;
  for (const auto& unit : units_) {
    const bool whole_state = !policy_.shard_optimizer;
    if (unit->trainable()) {
      if (whole_state && communicator_->size() > 1) {
        const auto range = unit->layout().shard(communicator_->rank());
        std::vector<at::Tensor> tensors = {masters_[t]};
        for (size_t i = 0; i < optimizer_->states().count(t); ++i) tensors.push_back(optimizer_->states().get(t, i));
        for (const at::Tensor& tensor : tensors) {
          communicator_->all_gather(tensor, tensor.narrow(0, range.begin, range.size()), base::str("loaded state of ", unit->label()))
              ->wait();
        }
      }
      if (working_type_ != at::kFloat) (whole_state ? unit->flat() : unit->shard()).copy_(masters_[t]);
      ++t;
    }
    if (unit->always_whole() && !unit->shared() && communicator_->size() > 1 && unit->elements() > 0) {
      communicator_->all_gather(unit->flat(), unit->shard(), base::str("loaded values of ", unit->label()))->wait();
    }
  }
  if (parameters_) communicator_->barrier("loaded values");
  zero_grad();
}

std::map<std::string, at::Tensor> EngineImpl::full_parameters(bool everywhere) {
  at::NoGradGuard no_grad;
  zero::InterceptionOff off;
  std::map<std::string, at::Tensor> values;
  for (const auto& state : unit_states()) {
    const zero::Unit& unit = *state.unit;
    auto whole = accel::pooled_empty(unit.elements(), at::kFloat, device_);
    const auto shard = state.parameter.to(at::kFloat).contiguous();
    if (whole.numel() > 0) communicator_->all_gather(whole, shard, base::str("full values of ", unit.label()))->wait();
    if (!everywhere && communicator_->rank() != 0) continue;
    for (const auto& slot : unit.layout().slots()) {
      values[slot.name] = whole.narrow(0, slot.offset, slot.elements).view(slot.shape).to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    }
  }
  return values;
}

namespace {

// Keeps units whole while it lives; takes the writes made meanwhile into the shards when it ends.
struct GatheredUnits {
  std::vector<zero::Unit*> units;
  std::function<void(const std::vector<zero::Unit*>&)> end;
  ~GatheredUnits() {
    try {
      end(units);
    } catch (const std::exception& error) {
      base::log_error("gathered_parameters: writes were not taken over: ", error.what());
    }
  }
};

}  // namespace

std::shared_ptr<void> EngineImpl::gathered_parameters(const std::vector<at::Tensor>& tensors, std::optional<int> modifier_rank) {
  if (modifier_rank && (*modifier_rank < 0 || *modifier_rank >= communicator_->size())) {
    throw Error(ErrorCode::kUsage, "engine",
                base::str("gathered_parameters: got modifier_rank ", *modifier_rank, ", allowed 0 to ", communicator_->size() - 1));
  }
  std::vector<bool> chosen(units_.size(), false);
  for (const auto& tensor : tensors) chosen[static_cast<size_t>(place_of(tensor, "gathered_parameters").unit->id())] = true;
  auto result = std::make_shared<GatheredUnits>();
  for (const auto& unit : units_) {
    if (!chosen[static_cast<size_t>(unit->id())]) continue;
    // Every rank may write inside: each gets a copy of its own for that time.
    if (unit->shared()) unit->isolate();
    if (!unit->always_whole()) residency_->pin(unit.get());
    result->units.push_back(unit.get());
  }
  if (parameters_) communicator_->barrier("gathered values");  // before anyone writes, all have their copies
  result->end = [this, modifier_rank](const std::vector<zero::Unit*>& units) {
    at::NoGradGuard no_grad;
    zero::InterceptionOff off;
    for (zero::Unit* unit : units) {
      if (modifier_rank && communicator_->size() > 1) {
        communicator_->broadcast(unit->flat(), *modifier_rank, base::str("modified ", unit->label()))->wait();
      }
      unit->update_shard_from_whole();
      if (unit->trainable() && working_type_ != at::kFloat) {
        const auto t = static_cast<size_t>(std::find(trained_.begin(), trained_.end(), static_cast<size_t>(unit->id())) - trained_.begin());
        masters_[t].copy_(policy_.shard_optimizer ? unit->shard() : unit->flat());
      }
      if (!unit->always_whole()) {
        residency_->unpin(unit);
        residency_->release(unit);
      }
    }
    if (parameters_) {
      communicator_->barrier("modified values");
      for (zero::Unit* unit : units) unit->rejoin();
    }
  };
  return result;
}

}  // namespace deepspeed::engine
