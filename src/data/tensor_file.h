// Tensors in safetensors files.
#pragma once

#include <ATen/core/Tensor.h>

#include "formats/safetensors.h"

namespace deepspeed::data {

at::ScalarType scalar_type_of(formats::Dtype dtype);
// Throws Error(kUsage) for a type that the format lacks.
formats::Dtype dtype_of(at::ScalarType type);

// A tensor of `file` as a CPU tensor with memory of its own.
at::Tensor read_tensor(const formats::SafetensorsFile& file, const formats::TensorEntry& entry);
// The values of `entry` into `target` (same number of elements, any dtype), without a copy between.
void read_into(at::Tensor target, const formats::SafetensorsFile& file, const formats::TensorEntry& entry);

// The values of a contiguous CPU tensor as they go into a file.
std::span<const std::byte> tensor_bytes(const at::Tensor& tensor);

}  // namespace deepspeed::data
