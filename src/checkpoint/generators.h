// States of torch's default random generators: the CPU's, and that of the device in use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace deepspeed::checkpoint {

// By name of the device type ("cpu", "cuda"); uint8 on the CPU.
std::vector<std::pair<std::string, at::Tensor>> generator_states(const at::Tensor& device_probe);
void set_generator_state(const std::string& device, const at::Tensor& device_probe, std::span<const std::byte> state);

}  // namespace deepspeed::checkpoint
