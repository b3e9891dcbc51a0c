// An optimizer over flat runs: one pass over a shard, however many tensors lie in it.
//
//   if (optimizer->needs_preparation()) { for each run: prepare(update); exchange(sum); }
//   for each run: update(update)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "optim/run_layout.h"
#include "optim/run_states.h"

namespace deepspeed::optim {

// What may differ between parameter groups and from step to step.
struct GroupSettings {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

struct RunUpdate {
  size_t run = 0;
  at::Tensor master;     // fp32; updated
  at::Tensor gradient;   // fp32
  at::Tensor half_copy;  // bfloat16 or float16: receives the new values rounded; undefined: not wanted
  GroupSettings group;
  int64_t step = 1;         // 1 for the first update
  double grad_scale = 1.0;  // unscaling, averaging and clipping together
};

// Gives the whole buffer of a unit from this rank's run of it.
using GatherRun = std::function<at::Tensor(const at::Tensor& run)>;

// Adds up `count` values over the ranks that share a run, in place.
using SumOverRanks = std::function<void(double* values, size_t count)>;

// Not thread safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  virtual void update(const RunUpdate& update) = 0;

  // Optimizers whose step depends on something of a whole parameter: in each step every run is prepared, one exchange follows, and only then come
  // the updates, with the same arguments.
  virtual bool needs_preparation() const { return false; }
  virtual void prepare(const RunUpdate&) {}
  virtual void exchange(const SumOverRanks&) {}

  // Muon: a direction takes the place of the gradient, in its memory, before update(). Its scale does not depend on the gradient's, so this
  // call takes grad_scale and update() gets that of the direction. Runs for which `directs` is false are left alone.
  virtual bool directs(size_t) const { return false; }
  virtual void direct(const RunUpdate&, const GatherRun&) {}

  // What a checkpoint carries. May be overwritten between steps.
  virtual RunStates& states() = 0;
};

}  // namespace deepspeed::optim
