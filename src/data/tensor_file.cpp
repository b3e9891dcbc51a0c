#include "data/tensor_file.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/text.h"
#include "deepspeed/safetensors.h"

namespace deepspeed::data {
namespace {

using formats::Dtype;

constexpr std::pair<Dtype, at::ScalarType> kTypes[] = {{Dtype::kBool, at::kBool},
                                                       {Dtype::kU8, at::kByte},
                                                       {Dtype::kI8, at::kChar},
                                                       {Dtype::kF8E5M2, at::kFloat8_e5m2},
                                                       {Dtype::kF8E4M3, at::kFloat8_e4m3fn},
                                                       {Dtype::kU16, at::kUInt16},
                                                       {Dtype::kI16, at::kShort},
                                                       {Dtype::kF16, at::kHalf},
                                                       {Dtype::kBF16, at::kBFloat16},
                                                       {Dtype::kU32, at::kUInt32},
                                                       {Dtype::kI32, at::kInt},
                                                       {Dtype::kF32, at::kFloat},
                                                       {Dtype::kC64, at::kComplexFloat},
                                                       {Dtype::kU64, at::kUInt64},
                                                       {Dtype::kI64, at::kLong},
                                                       {Dtype::kF64, at::kDouble}};

}  // namespace

at::ScalarType scalar_type_of(Dtype dtype) {
  for (const auto& [own, theirs] : kTypes) {
    if (own == dtype) return theirs;
  }
  DS_CHECK(false, "dtype ", static_cast<int>(dtype));
  return at::kFloat;
}

Dtype dtype_of(at::ScalarType type) {
  for (const auto& [own, theirs] : kTypes) {
    if (theirs == type) return own;
  }
  throw Error(ErrorCode::kUsage, "safetensors", base::str("dtype of a tensor: got ", at::toString(type), ", allowed those of safetensors"));
}

at::Tensor read_tensor(const formats::SafetensorsFile& file, const formats::TensorEntry& entry) {
  at::Tensor out = at::empty(entry.shape, at::TensorOptions().dtype(scalar_type_of(entry.dtype)));
  const auto bytes = file.bytes(entry);
  if (!bytes.empty()) std::memcpy(out.mutable_data_ptr(), bytes.data(), bytes.size());
  return out;
}

void read_into(at::Tensor target, const formats::SafetensorsFile& file, const formats::TensorEntry& entry) {
  const at::NoGradGuard no_grad;
  const auto bytes = file.bytes(entry);
  // Elements of a file need not be aligned, those of a tensor must be.
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % formats::dtype_size(entry.dtype) == 0;
  if (bytes.empty()) return;
  const at::Tensor source =
      aligned ? at::from_blob(const_cast<std::byte*>(bytes.data()), entry.shape, at::TensorOptions().dtype(scalar_type_of(entry.dtype)))
              : read_tensor(file, entry);
  target.copy_(source.view(target.sizes()));
}

std::span<const std::byte> tensor_bytes(const at::Tensor& tensor) {
  DS_CHECK(tensor.is_contiguous() && tensor.device().is_cpu(), "strides ", tensor.strides(), " on ", tensor.device());
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace deepspeed::data

namespace deepspeed {

std::map<std::string, at::Tensor> load_safetensors(const std::string& path) {
  const formats::SafetensorsFile file(path);
  std::map<std::string, at::Tensor> out;
  for (const formats::TensorEntry& entry : file.entries()) out.emplace(entry.name, data::read_tensor(file, entry));
  return out;
}

void save_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<formats::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, data::dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  formats::SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    writer.write(name, data::tensor_bytes(plain));
  }
  writer.finish(true);
}

}  // namespace deepspeed
