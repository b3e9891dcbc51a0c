#include "tensor/parameter_list.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <unordered_map>

namespace deepspeed::tensor {
namespace {

class Collector {
 public:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto [where, is_new] = index_.try_emplace(tensor.unsafeGetTensorImpl(), list_.size());
    if (is_new) {
      list_.push_back({name, tensor, {}});
    } else {
      list_[where->second].aliases.push_back(name);
    }
  }
  std::vector<NamedTensor> take() { return std::move(list_); }

 private:
  std::vector<NamedTensor> list_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_;
};

}  // namespace

ModuleTensors list_tensors(const torch::nn::Module& module) {
  Collector parameters, buffers;
  for (const auto& item : module.named_parameters()) parameters.add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) buffers.add(item.key(), item.value());
  return {parameters.take(), buffers.take()};
}

ModuleTensors list_tensors(const torch::jit::Module& module) {
  Collector parameters, buffers;
  for (const auto& item : module.named_parameters()) parameters.add(item.name, item.value);
  for (const auto& item : module.named_buffers()) buffers.add(item.name, item.value);
  return {parameters.take(), buffers.take()};
}

}  // namespace deepspeed::tensor
