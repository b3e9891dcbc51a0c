// The parameters and buffers of a module as a flat list, whatever kind of module it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace deepspeed::tensor {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  std::vector<std::string> aliases;  // further names of the same tensor (tied weights)
};

struct ModuleTensors {
  std::vector<NamedTensor> parameters;  // module-tree order, each tensor once, under its first name
  std::vector<NamedTensor> buffers;
};

ModuleTensors list_tensors(const torch::nn::Module& module);
ModuleTensors list_tensors(const torch::jit::Module& module);

}  // namespace deepspeed::tensor
