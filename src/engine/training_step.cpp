// Backward, the boundary of accumulation, and the step.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/trace.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"
#include "engine/autocast_off.h"
#include "engine/engine_impl.h"
#include "zero/interception.h"
#include "zero/square_sums.h"

namespace deepspeed::engine {
at::Tensor EngineImpl::backward(const at::Tensor& loss, bool scale_wrt_gas) {
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(ErrorCode::kUsage, "engine",
                base::str("backward: got a loss of ", loss.defined() ? loss.numel() : 0, " elements, allowed a scalar (rank ",
                          communicator_->rank(), ")"));
  }
  if (!loss.requires_grad()) {
    throw Error(
        ErrorCode::kUsage, "engine",
        "backward: got a loss that depends on no trained parameter, allowed one that does (was it made under no_grad or detached?)");
  }
  if (backward_done_ && (boundary_pass_ || !(unsynced_pass_ || boundary_set_))) {
    throw Error(ErrorCode::kUsage, "engine",
                "backward: got a second call before step(), allowed one backward() and one step() per micro batch (or several before the "
                "boundary, with no_sync() or set_gradient_accumulation_boundary(false))");
  }
  if (config_.torch_autocast.enabled && !scope_used_.exchange(false) && open_scopes_ == 0) {
    throw Error(ErrorCode::kUsage, "engine",
                "backward: got a loss from outside engine->forward() and engine->scope(), allowed from inside with torch_autocast: the "
                "model's call would not be autocast");
  }
  clock_.lap(&clock_.forward);
  trace::record_since(mark_, trace::Kind::kForward, "forward and data");
  trace::Span span(trace::Kind::kBackward, "backward");
  const bool before = zero::set_interception(residency_ != nullptr);
  const AutocastOff no_autocast(device_.type());
  unsynced_pass_ = no_sync_depth_ > 0;
  boundary_pass_ = !unsynced_pass_ && at_boundary();
  gradients_->begin(boundary_pass_);
  if (residency_) residency_->begin_backward();
  at::Tensor shared = loss;
  try {
    if (scale_wrt_gas && config_.gradient_accumulation_steps > 1)
      shared = at::div(loss, at::Scalar(static_cast<double>(config_.gradient_accumulation_steps)));
    // In fp32, so that a loss in fp16 does not overflow on its own.
    if (scaler_) {
      shared.to(at::kFloat).mul(scaler_->scale()).backward();
    } else {
      shared.backward();
    }
    gradients_->end();
  } catch (...) {
    gradients_->abandon();
    begin_accumulation();
    if (residency_) residency_->end_backward();
    zero::set_interception(before);
    throw;
  }
  if (residency_) residency_->end_backward();
  zero::set_interception(before);
  backward_done_ = true;
  ++passes_since_boundary_;
  clock_.lap(&clock_.backward);
  return shared.detach();
}

void EngineImpl::step() {
  if (no_sync_depth_ > 0)
    throw Error(ErrorCode::kUsage, "engine", "step: got a call inside no_sync(), allowed after it: gradients are still of this rank alone");
  if (!backward_done_)
    throw Error(ErrorCode::kUsage, "engine", "step: got a call without a backward() before it, allowed one per backward()");
  at::NoGradGuard no_grad;
  zero::InterceptionOff off;
  const AutocastOff no_autocast(device_.type());
  backward_done_ = false;
  step_applied_ = false;
  clock_.lap(&clock_.forward);
  const bool boundary = at_boundary();
  ++steps_since_boundary_;
  ++progress_.micro_steps;
  if (boundary) {
    trace::Span span(trace::Kind::kOptimizer, "step");
    // The last backward() did not know that it was the last.
    if (!boundary_pass_) gradients_->flush();
    optimizer_step();
    forget_autocast_copies();
  }
  mark_ = trace::mark();
  clock_.lap(&clock_.step);
  if (boundary) print_progress();
  // All ranks know of it from the norm's agreement; the step itself is done.
  if (std::exchange(save_failed_, false)) saver_->wait();
}

void EngineImpl::print_progress() {
  const Clock spent = clock_;
  clock_.forward = clock_.backward = clock_.step = 0;
  if (communicator_->rank() != 0) return;
  if (config_.wall_clock_breakdown) {
    base::log_info("time (ms) | fwd: ", spent.forward, " | bwd: ", spent.backward, " | step: ", spent.step);
  }
  if (!config_.steps_per_print || progress_.global_steps % *config_.steps_per_print != 0) return;
  std::vector<std::string> rates, momenta;
  for (const auto& group : rates_) rates.push_back(base::str(group.lr));
  for (const auto& values : momenta_of_groups()) {
    std::vector<std::string> words;
    for (const double value : values) words.push_back(base::str(value));
    momenta.push_back(words.size() == 1 ? words[0] : base::str("(", base::join(words, ", "), ")"));
  }
  base::log_info("step=", progress_.global_steps, ", skipped=", progress_.skipped_steps, ", lr=[", base::join(rates, ", "), "], mom=[",
                 base::join(momenta, ", "), "]", scaler_ ? base::str(", loss_scale=", scaler_->scale()) : std::string());
}

void EngineImpl::zero_grad() {
  gradients_->clear();
  begin_accumulation();
}

// Nothing is accumulated, and the next micro batch is the first.
void EngineImpl::begin_accumulation() {
  backward_done_ = boundary_pass_ = unsynced_pass_ = false;
  steps_since_boundary_ = passes_since_boundary_ = 0;
}

double EngineImpl::gradient_factor() const {
  // The scale changes only at the end of a step, so this is the one that its losses were multiplied with.
  return (config_.prescale_gradients ? 1.0 : config_.gradient_predivide_factor / communicator_->size()) / loss_scale();
}

void EngineImpl::optimizer_step() {
  if (residency_) residency_->release_all();
  double sum = 0;
  bool finite = true;
  for (size_t t = 0; t < trained_.size(); ++t) {
    const double part = gradients_->square_sum(t);
    sum += part;
    finite = finite && std::isfinite(part);
  }
  const uint64_t calls = communicator_->call_hash() ^ (gathers_ == communicator_ ? 0 : gathers_->call_hash() * 0x9E3779B97F4A7C15ull);
  const comm::NormAgreement agreed = comm::agree_on_norm(*communicator_, sum, finite, saver_->failed(), calls, probe_);
  save_failed_ = agreed.notice;

  const double scale_after = gradient_factor();
  double norm = std::sqrt(agreed.square_sum) * scale_after;
  ++progress_.global_steps;
  // Of what was seen, which an accumulation that the caller ends early or late makes differ from train_batch_size.
  progress_.global_samples += passes_since_boundary_ * config_.train_micro_batch_size_per_gpu * config_.data_parallel_size;
  begin_accumulation();
  if (!agreed.finite || !std::isfinite(norm)) {
    skip_step();
    return;
  }
  consecutive_skips_ = 0;
  ++progress_.optimizer_steps;
  // As in DeepSpeed: where states are cut, norm and clipping see Muon's directions in place of gradients; in stage 0 gradients stay (see make_optimizer).
  const bool directions_first = policy_.shard_optimizer && config_.optimizer.type == "muon";
  if (directions_first) norm = std::sqrt(square_sum_of_directions(scale_after));
  grad_norm_ = norm;
  double clip = 1.0;
  if (config_.gradient_clipping > 0) clip = 1.0 / std::max(1.0, (norm + 1e-6) / config_.gradient_clipping);
  const double grad_scale = scale_after * clip;
  if (optimizer_->needs_preparation()) {
    for (size_t t = 0; t < trained_.size(); ++t) optimizer_->prepare(run_update(t, grad_scale));
    optimizer_->exchange([this](double* values, size_t count) {
      if (policy_.shard_optimizer) comm::sum_over_ranks(*communicator_, values, count, "norms of parameters", probe_);
    });
  }
  for (size_t t = 0; t < trained_.size(); ++t) {
    optim::RunUpdate update = run_update(t, grad_scale);
    if (directions_first && optimizer_->directs(t)) update.grad_scale = clip;
    optimizer_->update(update);
  }
  gradients_->clear();
  publish_parameters();
  schedule_->step();
  if (scaler_) scaler_->update(/*overflow=*/false);
  step_applied_ = true;
}

void EngineImpl::direct(const optim::RunUpdate& update) {
  const AutocastOff no_autocast(device_.type());  // a step may be taken inside the caller's scope
  const zero::Unit& unit = *units_[trained_[update.run]];
  optimizer_->direct(update, [&](const at::Tensor& run) {
    if (communicator_->size() == 1) return run.clone();
    const at::Tensor whole = at::empty({unit.elements()}, run.options());
    communicator_->all_gather(whole, run, base::str("momenta of ", unit.label()))->wait();
    return whole;
  });
}

// Puts directions in the place of gradients; the sum goes over all ranks and takes in the gradients that stay, scaled.
double EngineImpl::square_sum_of_directions(double scale_after) {
  double sum = 0;
  for (size_t t = 0; t < trained_.size(); ++t) {
    if (!optimizer_->directs(t)) {
      sum += gradients_->square_sum(t) * scale_after * scale_after;
      continue;
    }
    const optim::RunUpdate update = run_update(t, scale_after);
    direct(update);
    sum += zero::square_sum(update.gradient);
  }
  comm::sum_over_ranks(*communicator_, &sum, 1, "norm of directions", probe_);
  return sum;
}

// One non-finite value would stay in the moments and weights for good.
void EngineImpl::skip_step() {
  ++progress_.skipped_steps;
  ++consecutive_skips_;
  grad_norm_.reset();
  gradients_->clear();
  const double attempted = loss_scale();
  std::string scaling;
  if (scaler_) {
    scaler_->update(/*overflow=*/true);
    scaling = base::str("; loss scale ", attempted, " -> ", scaler_->scale());
    if (scaler_->dynamic() && scaler_->scale() == attempted) scaling += base::str(", ", scaler_->tolerance_left() - 1, " more tolerated");
  }
  base::log_warning("step ", progress_.global_steps, ": gradients are not finite, skipped on all ranks (", progress_.skipped_steps,
                    " skipped so far)", scaling);
  limit_skips();
}

void EngineImpl::limit_skips() {
  constexpr int64_t kDefaultLimit = 100;
  const int64_t limit = config_.max_consecutive_skipped_steps.value_or(scaler_ ? 0 : kDefaultLimit);
  if (limit == 0 || consecutive_skips_ < limit) return;
  throw Error(
      ErrorCode::kNumerics, "engine",
      base::str("step ", progress_.global_steps, ": got gradients that are not finite in ", consecutive_skips_, " steps in a row, allowed ",
                limit - 1, " (max_consecutive_skipped_steps ", limit, "; 0 allows any number); weights are those of the last good step"));
}

optim::RunUpdate EngineImpl::run_update(size_t trained, double grad_scale) const {
  const zero::Unit& unit = *units_[trained_[trained]];
  const auto group = static_cast<size_t>(unit.group());
  const auto betas = rates_[group].betas.value_or(std::make_pair(config_.optimizer.beta1, config_.optimizer.beta2));
  optim::RunUpdate update;
  update.run = trained;
  update.master = masters_[trained];
  update.gradient = policy_.shard_optimizer ? gradients_->shard_gradient(trained) : gradients_->whole_gradient(trained);
  if (working_type_ != at::kFloat) update.half_copy = policy_.shard_optimizer ? unit.shard() : unit.flat();
  update.group = {rates_[group].lr, betas.first, betas.second, groups_[group].eps, groups_[group].weight_decay};
  update.step = progress_.optimizer_steps;
  update.grad_scale = config_.optimizer.maximize ? -grad_scale : grad_scale;
  return update;
}

void EngineImpl::publish_parameters() {
  if (!policy_.shard_optimizer || communicator_->size() == 1) return;
  if (parameters_) {
    // Every rank has written its shards where all see them; nobody reads before all have.
    communicator_->barrier("new values");
    return;
  }
  std::vector<std::unique_ptr<PendingCollective>> pending;
  for (const size_t index : trained_) {
    const zero::Unit& unit = *units_[index];
    if (!unit.always_whole()) continue;
    const std::string tag = base::str("new values of ", unit.label());
    if (config_.zero.allgather_partitions) {
      pending.push_back(communicator_->all_gather(unit.flat(), unit.shard(), tag));
    } else {
      for (int rank = 0; rank < communicator_->size(); ++rank) {
        const auto range = unit.layout().shard(rank);
        pending.push_back(communicator_->broadcast(unit.flat().narrow(0, range.begin, range.size()), rank, tag));
      }
    }
  }
  for (const auto& call : pending) call->wait();
}

}  // namespace deepspeed::engine
