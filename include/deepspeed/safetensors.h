// Safetensors files as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "deepspeed/error.h"

namespace deepspeed {

// Every tensor of a file, by name, as CPU tensors with memory of their own. Throws Error(kFile) or Error(kModelFormat).
std::map<std::string, at::Tensor> load_safetensors(const std::string& path);

// Writes tensors in the order of their names; any device and strides. The file appears under `path` when it is complete and has reached the
// disk. Throws Error(kFile), or Error(kUsage) for a dtype that the format lacks.
void save_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace deepspeed
