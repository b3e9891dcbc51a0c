// Element types of tensors, as safetensors calls them.
#pragma once

#include <ATen/core/Tensor.h>

#include "formats/safetensors.h"

namespace deepspeed::checkpoint {

// Throws Error(kNotBuilt) for complex and quantised types.
formats::Dtype dtype_of(const at::Tensor& tensor);
// The same the other way. Throws Error(kNotBuilt) for types that torch has no tensors of.
at::ScalarType scalar_type_of(formats::Dtype dtype);

}  // namespace deepspeed::checkpoint
