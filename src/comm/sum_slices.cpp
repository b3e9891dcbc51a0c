#include "comm/sum_slices.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "comm/data_type.h"
#include "kernels/cast.h"
#include "kernels/reduce.h"

namespace deepspeed::comm {

void sum_in_pieces(float* out, int64_t begin, int64_t count, std::span<const void* const> sources, DataType type, bool accumulate,
                   const PieceReady& ready) {
  DS_CHECK(begin % kPieceElements == 0, begin);
  const size_t width = kernels::bytes_of(type);
  const int64_t pieces = (count + kPieceElements - 1) / kPieceElements;
  at::parallel_for(0, pieces, 2, [&](int64_t first, int64_t last) {
    std::vector<const void*> from(sources.size());
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t offset = piece * kPieceElements, n = std::min(kPieceElements, count - offset);
      for (size_t s = 0; s < sources.size(); ++s) from[s] = static_cast<const std::byte*>(sources[s]) + static_cast<size_t>(offset) * width;
      kernels::sum_slices(out + begin + offset, from.data(), type, from.size(), static_cast<size_t>(n), accumulate);
      if (ready) ready(begin + offset, begin + offset + n);
    }
  });
}

void sum_slices(at::Tensor output, const at::Tensor& input, int slices, bool accumulate, const PieceReady& ready) {
  const int64_t count = output.numel();
  if (count == 0) return;
  if (!output.is_cpu()) {
    for (int s = 0; s < slices; ++s) {
      const auto slice = input.narrow(0, s * count, count);
      if (s == 0 && !accumulate) {
        output.copy_(slice);
      } else {
        output.add_(slice);
      }
    }
    if (ready) ready(0, count);
    return;
  }
  const DataType type = data_type_of(input.scalar_type());
  const auto* in = static_cast<const std::byte*>(input.const_data_ptr());
  std::vector<const void*> sources;
  for (int64_t s = 0; s < slices; ++s) sources.push_back(in + static_cast<size_t>(s * count) * kernels::bytes_of(type));
  sum_in_pieces(output.mutable_data_ptr<float>(), 0, count, sources, type, accumulate, ready);
}

}  // namespace deepspeed::comm
