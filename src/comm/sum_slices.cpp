#include "comm/sum_slices.h"

#include <ATen/Parallel.h>

#include "comm/data_type.h"
#include "kernels/cast.h"
#include "kernels/reduce.h"

namespace deepspeed::comm {
void sum_slices(at::Tensor output, const at::Tensor& input, int slices, bool accumulate) {
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
    return;
  }
  const DataType type = data_type_of(input.scalar_type());
  auto* out = output.mutable_data_ptr<float>();
  const auto* in = static_cast<const std::byte*>(input.const_data_ptr());
  const auto width = static_cast<int64_t>(kernels::bytes_of(type));
  at::parallel_for(0, count, 32768, [&](int64_t begin, int64_t end) {
    kernels::sum_slices(out + begin, in + begin * width, type, slices, count, end - begin, accumulate);
  });
}

}  // namespace deepspeed::comm
