// Places for gradients on their way to their owners, in memory that all ranks map: peers sum them where they lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "deepspeed/comm.h"

namespace deepspeed::zero {

// This rank's slots: a slot is taken by a tensor and free again when the tensor's storage ends. Used by one thread; storages may end on any.
class GradientSlots {
 public:
  // `memory` holds count * bytes for every rank, in rank order.
  GradientSlots(std::shared_ptr<SharedMemory> memory, int rank, size_t count, size_t bytes);

  // A flat tensor [elements], contents undefined; undefined when no slot is free or it does not fit.
  at::Tensor take(int64_t elements, at::ScalarType type);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace deepspeed::zero
