// Gradients from autograd into the units' flat buffers, and from there to their owners.
//
// A parameter's gradient is copied (first micro batch) or added (later ones) into its unit's buffer the moment autograd has it, and dropped from the
// parameter. When a unit's last gradient is in, its reduction starts, beside the rest of backward; reductions start in one fixed order
// on all ranks, whatever order the gradients arrive in, so that ranks that use other parameters still agree. What no gradient came for counts as zero.
//
//   backward --hook--> buffer[padded] --reduce_scatter--> shard gradient (fp32, this rank's part)       sharded gradients: every micro batch
//                                                                                                       else: at the boundary
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "deepspeed/comm.h"
#include "deepspeed/config.h"
#include "zero/gradient_slots.h"
#include "zero/policy.h"
#include "zero/unit.h"

namespace deepspeed::zero {

struct GradientOptions {
  Policy policy;
  at::ScalarType buffer_type = at::kFloat;  // accumulation inside a rank, and on the wire unless wire_type differs
  at::ScalarType wire_type = at::kFloat;
  bool overlap = true;         // false: each reduction is waited for where it starts
  bool reduce_scatter = true;  // false: all-reduce, then take the own part
  double scale_before = 1.0;   // factor applied to every gradient before the reduction
  bool ignore_unused = true;   // false: a parameter without a gradient is an error
  // Reductions under way at most; the oldest is waited for when another begins, which bounds the buffers. 0: no bound, for ranks whose backward also
  // waits for one another in gathers, where a rank that uses other parameters would wait for a reduction that its peer has not reached.
  size_t in_flight = 0;
  std::shared_ptr<GradientSlots> slots;  // where buffers lie while there is room; may be empty
};

// Owns the hooks and the gradient buffers. `units` (the trainable ones, in model order) must outlive it.
class GradientFlow {
 public:
  GradientFlow(std::vector<Unit*> units, std::shared_ptr<Communicator> communicator, GradientOptions options);
  ~GradientFlow();
  GradientFlow(const GradientFlow&) = delete;
  GradientFlow& operator=(const GradientFlow&) = delete;

  // Called when a unit has all its gradients of this backward: its parameters are not needed any more.
  void on_unit_complete(std::function<void(Unit*)> callback) { complete_ = std::move(callback); }

  // Around one backward. `boundary`: this is the last micro batch of the step.
  void begin(bool boundary);
  void end();
  // After an error inside backward: forgets this pass.
  void abandon();
  // The passes so far are the step's, although none of them was begun as the boundary: reduces what has not been reduced.
  void flush();

  // After end() of the boundary: the sum over ranks and micro batches of unit number i, fp32, this rank's shard, or the whole buffer when
  // optimizer state is not sharded. Valid until clear().
  at::Tensor shard_gradient(size_t unit) const;
  at::Tensor whole_gradient(size_t unit) const;
  // Whether there is such a sum; where gradients are sharded, after every end().
  bool reduced(size_t unit) const;
  // The caller has written to that sum.
  void changed(size_t unit);
  // Of shard_gradient(unit), in double; not finite when an element is not. Usually taken while the sum was in the cache.
  double square_sum(size_t unit) const;

  // Gives all buffers back. The next backward starts from zero.
  void clear();

 private:
  struct UnitState;
  class Hook;

  void arrived(size_t unit, size_t parameter, const at::Tensor& gradient);
  void take_dense(UnitState& state, size_t parameter, const at::Tensor& gradient);
  void take_rows(UnitState& state, size_t parameter, const at::Tensor& gradient);
  void make_buffer(UnitState& state);
  void advance();
  void reduce_latecomers();
  PieceReady squares_of(UnitState& state, const at::Tensor& target);
  // Every rank gets the whole sum: the optimizer needs it, or the configuration asks for an all-reduce.
  bool reduces_whole() const { return !options_.policy.shard_optimizer || !options_.reduce_scatter; }
  void start_reduction(UnitState& state);
  void finish_reduction(UnitState& state);
  void fill_missing(UnitState& state);

  std::vector<std::unique_ptr<UnitState>> states_;  // by position in `units`
  std::shared_ptr<Communicator> communicator_;
  GradientOptions options_;
  std::function<void(Unit*)> complete_;
  bool active_ = false;  // between begin and end
  bool boundary_ = false;
  size_t next_ = 0;      // reductions started in this pass
  size_t finished_ = 0;  // of these, waited for
};

}  // namespace deepspeed::zero
