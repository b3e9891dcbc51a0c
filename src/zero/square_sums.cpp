#include "zero/square_sums.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>

#include "deepspeed/comm.h"
#include "kernels/reduce.h"

namespace deepspeed::zero {

void SquareSums::start(int64_t elements) { sums_.assign(static_cast<size_t>((elements + kPieceElements - 1) / kPieceElements), 0.0); }

void SquareSums::take(const float* shard, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; at += kPieceElements) {
    const auto n = static_cast<size_t>(std::min(kPieceElements, end - at));
    sums_[static_cast<size_t>(at / kPieceElements)] = kernels::square_sum(shard + at, n).sum;
  }
}

double SquareSums::total() const { return std::accumulate(sums_.begin(), sums_.end(), 0.0); }

double square_sum(const at::Tensor& shard) {
  if (!shard.is_cpu()) return shard.to(at::kDouble).square().sum().item().toDouble();
  SquareSums sums;
  sums.start(shard.numel());
  const auto* data = shard.const_data_ptr<float>();
  const int64_t n = shard.numel(), pieces = (n + kPieceElements - 1) / kPieceElements;
  at::parallel_for(0, pieces, 2,
                   [&](int64_t first, int64_t last) { sums.take(data, first * kPieceElements, std::min(n, last * kPieceElements)); });
  return sums.total();
}

}  // namespace deepspeed::zero
