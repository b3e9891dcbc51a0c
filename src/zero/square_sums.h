// Sum of squares of a shard, taken piece by piece: by whoever has a piece in its cache, in any order and on any thread. The total adds the pieces in
// order, so its bits depend on neither.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace deepspeed::zero {

class SquareSums {
 public:
  // Forgets everything; `elements` is the shard's size.
  void start(int64_t elements);
  // Elements [begin, end) of the shard (float32, on the CPU) are final. `begin` is a multiple of kPieceElements. Any thread.
  void take(const float* shard, int64_t begin, int64_t end);
  // The sum in double; not finite when an element is not.
  double total() const;

 private:
  std::vector<double> sums_;  // of each piece
};

// Of a tensor in float32, on its device and all threads: the same bits as from pieces.
double square_sum(const at::Tensor& shard);

}  // namespace deepspeed::zero
