#include "zero/gradient_flow.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstring>

#include "accel/pool.h"
#include "base/check.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "zero/interception.h"
#include "zero/square_sums.h"

namespace deepspeed::zero {
namespace {

constexpr int64_t kPlainCopyBytes = 256 * 1024;

}  // namespace

struct GradientFlow::UnitState {
  Unit* unit = nullptr;
  size_t position = 0;
  std::vector<bool> has;      // parameter -> something in the buffer since clear()
  std::vector<bool> arrived;  // parameter -> gradient seen in this backward
  size_t missing = 0;         // parameters still awaited in this backward
  bool started = false;       // its reduction of this backward has begun
  at::Tensor buffer;          // [padded], buffer_type
  at::Tensor wire;            // [padded], wire_type, while a reduction that needs another type runs
  at::Tensor shard;           // [shard], fp32: reduced sum
  at::Tensor whole;           // [padded], fp32: reduced sum, when every rank needs all of it
  SquareSums squares;         // of the shard gradient, while has_squares
  bool has_squares = false;
  std::unique_ptr<PendingCollective> pending;
};

// Hands a leaf's fresh gradient to the flow. Lives on the parameter until the flow ends.
class GradientFlow::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientFlow* flow, size_t unit, size_t parameter) : flow_(flow), unit_(unit), parameter_(parameter) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    at::Tensor& gradient = tensor.mutable_grad();
    flow_->arrived(unit_, parameter_, gradient);
    gradient.reset();
  }

 private:
  GradientFlow* flow_;
  size_t unit_, parameter_;
};

GradientFlow::GradientFlow(std::vector<Unit*> units, std::shared_ptr<Communicator> communicator, GradientOptions options)
    : communicator_(std::move(communicator)), options_(options) {
  for (size_t u = 0; u < units.size(); ++u) {
    auto state = std::make_unique<UnitState>();
    state->unit = units[u];
    state->position = u;
    const auto& parameters = units[u]->parameters();
    state->has.assign(parameters.size(), false);
    state->arrived.assign(parameters.size(), false);
    states_.push_back(std::move(state));
    for (size_t p = 0; p < parameters.size(); ++p) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameters[p], std::make_unique<Hook>(this, u, p));
    }
  }
}

GradientFlow::~GradientFlow() {
  for (const auto& state : states_) {
    for (const auto& parameter : state->unit->parameters()) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

void GradientFlow::begin(bool boundary) {
  active_ = true;
  boundary_ = boundary;
  next_ = finished_ = 0;
  for (const auto& state : states_) {
    state->arrived.assign(state->arrived.size(), false);
    state->missing = state->arrived.size();
    state->started = false;
  }
}

void GradientFlow::make_buffer(UnitState& state) {
  if (options_.slots) state.buffer = options_.slots->take(state.unit->elements(), options_.buffer_type);
  if (!state.buffer.defined()) state.buffer = accel::pooled_empty(state.unit->elements(), options_.buffer_type, state.unit->device());
  for (const auto& gap : state.unit->layout().gaps()) state.buffer.narrow(0, gap.begin, gap.size()).zero_();
}

void GradientFlow::arrived(size_t unit, size_t parameter, const at::Tensor& gradient) {
  UnitState& state = *states_[unit];
  const auto& slot = state.unit->layout().slots()[parameter];
  if (!active_) {
    throw Error(ErrorCode::kUsage, "engine",
                base::str("backward: got a gradient outside engine->backward(loss) (parameter ", slot.name,
                          "), allowed only inside: call engine->backward(loss) instead of loss.backward()"));
  }
  at::NoGradGuard no_grad;
  InterceptionOff off;
  if (state.started && state.pending) finish_reduction(state);
  if (!state.buffer.defined()) make_buffer(state);
  if (gradient.layout() == at::kStrided) {
    take_dense(state, parameter, gradient);
  } else if (gradient.layout() == at::kSparse && gradient.sparse_dim() == 1) {
    take_rows(state, parameter, gradient);
  } else {
    throw Error(ErrorCode::kNotBuilt, "engine",
                base::str("backward: got a gradient of layout ", gradient.layout(),
                          ", allowed dense ones and sparse rows as nn::Embedding ", "gives them (parameter ", slot.name, ")"));
  }
  state.has[parameter] = true;
  if (!state.arrived[parameter]) {
    state.arrived[parameter] = true;
    if (--state.missing == 0) {
      if (complete_) complete_(state.unit);
      advance();
    }
  }
}

void GradientFlow::take_dense(UnitState& state, size_t parameter, const at::Tensor& gradient) {
  const auto& slot = state.unit->layout().slots()[parameter];
  const bool first = !state.has[parameter];
  const bool scaled = options_.scale_before != 1.0;
  const bool plain = gradient.is_cpu() && gradient.scalar_type() == options_.buffer_type && gradient.is_contiguous();
  const auto width = static_cast<int64_t>(gradient.element_size());
  // Small ones without torch's dispatch; large ones by torch, on all threads of the rank.
  if (plain && first && !scaled && slot.elements * width <= kPlainCopyBytes) {
    if (slot.elements > 0) {
      std::memcpy(static_cast<std::byte*>(state.buffer.mutable_data_ptr()) + slot.offset * width, gradient.const_data_ptr(),
                  static_cast<size_t>(slot.elements * width));
    }
    return;
  }
  auto view = state.buffer.narrow(0, slot.offset, slot.elements).view(slot.shape);
  if (first) {
    view.copy_(gradient);
    if (scaled) view.mul_(options_.scale_before);
  } else {
    view.add_(gradient, options_.scale_before);
  }
}

// Rows of a table, each perhaps several times. They are summed before they meet the buffer, as a dense gradient's are.
void GradientFlow::take_rows(UnitState& state, size_t parameter, const at::Tensor& gradient) {
  const auto& slot = state.unit->layout().slots()[parameter];
  auto view = state.buffer.narrow(0, slot.offset, slot.elements).view(slot.shape);
  if (!state.has[parameter]) view.zero_();
  const auto summed = gradient.coalesce();
  view.index_add_(0, summed.indices().select(0, 0), summed.values().to(options_.buffer_type), options_.scale_before);
}

void GradientFlow::advance() {
  if (!options_.policy.shard_gradients && !boundary_) return;
  // Last layers come first in backward; a unit waits for those before it so that all ranks reduce in one order.
  while (next_ < states_.size()) {
    UnitState& state = *states_[states_.size() - 1 - next_];
    if (state.missing != 0) return;
    // Counted in the fixed order, so that all ranks wait at the same places.
    if (options_.in_flight > 0 && next_ - finished_ >= options_.in_flight) finish_reduction(*states_[states_.size() - 1 - finished_++]);
    ++next_;
    state.started = true;
    start_reduction(state);
  }
}

// A parameter used in two separate backward graphs of one pass (re-entrant recomputation) can get a gradient after its unit's reduction began:
// that part is reduced on its own and added.
void GradientFlow::reduce_latecomers() {
  for (size_t u = states_.size(); u-- > 0;) {
    UnitState& state = *states_[u];
    if (!state.started || !state.buffer.defined()) continue;
    state.started = false;
    fill_missing(state);
    start_reduction(state);
    finish_reduction(state);
  }
}

void GradientFlow::fill_missing(UnitState& state) {
  if (state.started) return;
  if (state.missing > 0 && !options_.ignore_unused) {
    for (size_t p = 0; p < state.arrived.size(); ++p) {
      if (state.arrived[p]) continue;
      throw Error(ErrorCode::kUsage, "engine",
                  base::str("backward: got no gradient for parameter ", state.unit->layout().slots()[p].name, " (rank ",
                            communicator_->rank(), "), allowed only with zero_optimization.ignore_unused_parameters true"));
    }
  }
  const bool reduces = options_.policy.shard_gradients || boundary_;
  if (reduces) {
    if (!state.buffer.defined()) make_buffer(state);
    for (size_t p = 0; p < state.has.size(); ++p) {
      if (state.has[p]) continue;
      const auto& slot = state.unit->layout().slots()[p];
      state.buffer.narrow(0, slot.offset, slot.elements).zero_();
    }
  }
  if (state.missing > 0) {
    state.missing = 0;
    if (complete_) complete_(state.unit);
  }
}

void GradientFlow::end() {
  DS_CHECK(active_);
  at::NoGradGuard no_grad;
  InterceptionOff off;
  for (const auto& state : states_) fill_missing(*state);
  advance();
  for (size_t u = states_.size(); u-- > 0;) finish_reduction(*states_[u]);
  reduce_latecomers();
  active_ = false;
}

void GradientFlow::abandon() {
  active_ = false;
  clear();
}

void GradientFlow::flush() {
  // Sharded gradients are reduced in every pass.
  if (options_.policy.shard_gradients) return;
  begin(/*boundary=*/true);
  for (const auto& state : states_) state->missing = 0;
  end();
}

void GradientFlow::start_reduction(UnitState& state) {
  const auto elements = state.unit->elements();
  const auto device = state.unit->device();
  at::Tensor input = state.buffer;
  if (options_.wire_type != options_.buffer_type) {
    state.wire = accel::pooled_empty(elements, options_.wire_type, device);
    state.wire.copy_(state.buffer);
    input = state.wire;
  }
  const std::string tag = base::str("gradients of ", state.unit->label());
  if (reduces_whole()) {
    // All-reduce in two halves, so that its bits are those of the sharded stages.
    const auto range = state.unit->layout().shard(communicator_->rank());
    const bool accumulate = state.whole.defined();
    if (!accumulate) state.whole = accel::pooled_empty(elements, at::kFloat, device);
    const at::Tensor own = state.whole.narrow(0, range.begin, range.size());
    state.pending = communicator_->reduce_scatter(own, input, tag, accumulate, squares_of(state, own));
  } else {
    const bool accumulate = state.shard.defined();
    if (!accumulate) state.shard = accel::pooled_empty(state.unit->layout().shard_elements(), at::kFloat, device);
    state.pending = communicator_->reduce_scatter(state.shard, input, tag, accumulate, squares_of(state, state.shard));
  }
  if (!options_.overlap) finish_reduction(state);
}

// The last micro batch's sums are the step's gradient: what the norm needs of it is taken while it is in the cache.
PieceReady GradientFlow::squares_of(UnitState& state, const at::Tensor& target) {
  state.has_squares = boundary_ && target.is_cpu();
  if (!state.has_squares) return {};
  state.squares.start(target.numel());
  return [squares = &state.squares, data = target.const_data_ptr<float>()](int64_t begin, int64_t end) { squares->take(data, begin, end); };
}

void GradientFlow::finish_reduction(UnitState& state) {
  if (!state.pending) return;
  const auto pending = std::move(state.pending);
  pending->wait();
  state.wire.reset();
  if (reduces_whole()) {
    const auto range = state.unit->layout().shard(communicator_->rank());
    const auto own = state.whole.narrow(0, range.begin, range.size());
    communicator_->all_gather(state.whole, own, base::str("gradients of ", state.unit->label()))->wait();
    if (options_.policy.shard_optimizer) {
      if (state.shard.defined()) {
        state.shard.add_(own);
        state.has_squares = false;
      } else {
        state.shard = own.clone();
      }
      state.whole.reset();
    }
  }
  // Whole gradients do not outlive the reduction; the next micro batch starts a new buffer.
  state.buffer.reset();
  state.has.assign(state.has.size(), false);
}

bool GradientFlow::reduced(size_t unit) const {
  const UnitState& state = *states_[unit];
  return !active_ && (state.shard.defined() || state.whole.defined());
}

void GradientFlow::changed(size_t unit) { states_[unit]->has_squares = false; }

at::Tensor GradientFlow::shard_gradient(size_t unit) const {
  const UnitState& state = *states_[unit];
  if (state.shard.defined()) return state.shard;
  DS_CHECK(state.whole.defined(), "no reduced gradient of ", state.unit->label());
  const auto range = state.unit->layout().shard(communicator_->rank());
  return state.whole.narrow(0, range.begin, range.size());
}

double GradientFlow::square_sum(size_t unit) const {
  const UnitState& state = *states_[unit];
  return state.has_squares ? state.squares.total() : zero::square_sum(shard_gradient(unit));
}

at::Tensor GradientFlow::whole_gradient(size_t unit) const {
  DS_CHECK(states_[unit]->whole.defined(), "no whole gradient of ", states_[unit]->unit->label());
  return states_[unit]->whole;
}

void GradientFlow::clear() {
  for (const auto& state : states_) {
    state->pending.reset();
    state->buffer.reset();
    state->wire.reset();
    state->shard.reset();
    state->whole.reset();
    state->has_squares = false;
    state->has.assign(state->has.size(), false);
  }
}

}  // namespace deepspeed::zero
