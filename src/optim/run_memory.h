// A run's tensors as plain memory, for the kernels.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "base/check.h"
#include "kernels/blocks.h"
#include "optim/optimizer.h"

namespace deepspeed::optim {

inline kernels::HalfCopy half_copy_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  DS_CHECK(tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf, c10::toString(tensor.scalar_type()));
  return {static_cast<uint16_t*>(tensor.mutable_data_ptr()), tensor.scalar_type() == at::kHalf ? DataType::kFloat16 : DataType::kBFloat16};
}

inline float* memory_of(at::Tensor& state) { return state.mutable_data_ptr<float>(); }

// Calls kernel(parameter, gradient, half copy, begin, count) for parts of the run, on the threads of torch.
template <typename Kernel>
void over_run(const RunUpdate& update, Kernel&& kernel) {
  const int64_t n = update.master.numel();
  DS_CHECK(update.gradient.numel() == n, "run ", update.run, ": master ", n, ", gradient ", update.gradient.numel());
  auto* parameter = update.master.mutable_data_ptr<float>();
  const auto* gradient = update.gradient.const_data_ptr<float>();
  const kernels::HalfCopy copy = half_copy_of(update.half_copy);
  constexpr int64_t kGrain = 32768;
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<size_t>(begin);
    kernel(parameter + first, gradient + first, copy.from(first), first, static_cast<size_t>(end - begin));
  });
}

}  // namespace deepspeed::optim
