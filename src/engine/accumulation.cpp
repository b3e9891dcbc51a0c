// Accumulation in the caller's hands: gradients that stay on their rank for a while, boundaries and batch sizes set from outside.
#include "base/log.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "engine/engine_impl.h"

namespace deepspeed::engine {
namespace {

class AtEnd {
 public:
  explicit AtEnd(std::function<void()> call) : call_(std::move(call)) {}
  ~AtEnd() { call_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  std::function<void()> call_;
};

}  // namespace

void EngineImpl::expect_between_boundaries(const char* call) const {
  if (no_sync_depth_ == 0 && passes_since_boundary_ == 0 && steps_since_boundary_ == 0) return;
  throw Error(
      ErrorCode::kUsage, "engine",
      base::str(call, ": got a call inside an accumulation (", passes_since_boundary_, " backward(), ", steps_since_boundary_,
                " step() since its beginning, rank ", communicator_->rank(), "), allowed between a boundary and the next backward()"));
}

// Gradients will be added up although gradient_accumulation_steps may be 1: in the type that accumulation takes.
void EngineImpl::accumulate_by_hand() {
  if (by_hand_) return;
  by_hand_ = true;
  // Inside an accumulation the buffers are made for one already, or hold what came so far in the weights' type, to which the rest is added.
  if (passes_since_boundary_ == 0) make_gradient_flow();
}

std::shared_ptr<void> EngineImpl::no_sync() {
  if (policy_.shard_gradients) {
    throw Error(ErrorCode::kUsage, "engine",
                base::str("no_sync: got a call with zero_optimization.stage ", config_.zero.stage,
                          ", allowed in stages 0 and 1: from stage 2 on no rank keeps whole gradients"));
  }
  accumulate_by_hand();
  ++no_sync_depth_;
  return std::make_shared<AtEnd>([this] { --no_sync_depth_; });
}

void EngineImpl::set_boundary(bool is_boundary) {
  accumulate_by_hand();
  boundary_set_ = is_boundary;
}

void EngineImpl::set_train_batch_size(int64_t size) {
  expect_between_boundaries("set_train_batch_size");
  const int64_t pass = config_.train_micro_batch_size_per_gpu * config_.data_parallel_size;
  if (size < 1 || size % pass != 0) {
    throw Error(ErrorCode::kUsage, "engine",
                base::str("set_train_batch_size: got ", size, ", allowed a multiple of ", pass, " (train_micro_batch_size_per_gpu ",
                          config_.train_micro_batch_size_per_gpu, " * ", config_.data_parallel_size, " ranks)"));
  }
  const bool accumulated = config_.gradient_accumulation_steps > 1;
  config_.train_batch_size = size;
  config_.gradient_accumulation_steps = size / pass;
  if (accumulated != (config_.gradient_accumulation_steps > 1)) make_gradient_flow();
}

void EngineImpl::set_train_micro_batch_size(int64_t size) {
  expect_between_boundaries("set_train_micro_batch_size");
  if (size < 1) {
    throw Error(ErrorCode::kUsage, "engine", base::str("set_train_micro_batch_size: got ", size, ", allowed an integer > 0"));
  }
  config_.train_micro_batch_size_per_gpu = size;
  config_.train_batch_size = size * config_.gradient_accumulation_steps * config_.data_parallel_size;
}

}  // namespace deepspeed::engine
