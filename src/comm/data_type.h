// torch's element types as ours, for the types gradients may have.
#pragma once

#include <c10/core/ScalarType.h>

#include "base/check.h"
#include "deepspeed/config.h"

namespace deepspeed::comm {

inline DataType data_type_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return DataType::kFloat32;
    case c10::ScalarType::BFloat16:
      return DataType::kBFloat16;
    case c10::ScalarType::Half:
      return DataType::kFloat16;
    default:
      DS_CHECK(false, "element type ", c10::toString(type));
  }
  return DataType::kFloat32;
}

}  // namespace deepspeed::comm
