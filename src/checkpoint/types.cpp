#include "checkpoint/types.h"

#include <utility>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::checkpoint {
namespace {

constexpr std::pair<at::ScalarType, formats::Dtype> kTypes[] = {
    {at::kFloat, formats::Dtype::kF32},  {at::kBFloat16, formats::Dtype::kBF16}, {at::kHalf, formats::Dtype::kF16},
    {at::kDouble, formats::Dtype::kF64}, {at::kBool, formats::Dtype::kBool},     {at::kByte, formats::Dtype::kU8},
    {at::kChar, formats::Dtype::kI8},    {at::kShort, formats::Dtype::kI16},     {at::kInt, formats::Dtype::kI32},
    {at::kLong, formats::Dtype::kI64},
};

[[noreturn]] void unknown(const char* type) {
  throw Error(ErrorCode::kNotBuilt, "checkpoint", base::str("tensor type: got ", type, ", allowed floating, integer and bool types"));
}

}  // namespace

formats::Dtype dtype_of(const at::Tensor& tensor) {
  for (const auto& [ours, theirs] : kTypes) {
    if (ours == tensor.scalar_type()) return theirs;
  }
  unknown(c10::toString(tensor.scalar_type()));
}

at::ScalarType scalar_type_of(formats::Dtype dtype) {
  for (const auto& [ours, theirs] : kTypes) {
    if (theirs == dtype) return ours;
  }
  unknown(formats::dtype_name(dtype));
}

}  // namespace deepspeed::checkpoint
