#include "checkpoint/generators.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceType.h>

#include <cstring>
#include <mutex>

namespace deepspeed::checkpoint {
namespace {

at::Generator generator_of(const c10::Device& device) { return at::globalContext().defaultGenerator(device); }

std::string name_of(const c10::Device& device) { return c10::DeviceTypeName(device.type(), /*lower_case=*/true); }

at::Tensor state_of(const c10::Device& device) {
  auto generator = generator_of(device);
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> generator_states(const at::Tensor& device_probe) {
  std::vector<std::pair<std::string, at::Tensor>> states;
  states.emplace_back("cpu", state_of(c10::Device(at::kCPU)));
  if (!device_probe.is_cpu()) states.emplace_back(name_of(device_probe.device()), state_of(device_probe.device()));
  return states;
}

void set_generator_state(const std::string& device, const at::Tensor& device_probe, std::span<const std::byte> state) {
  auto bytes = at::empty({static_cast<int64_t>(state.size())}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(bytes.mutable_data_ptr(), state.data(), state.size());
  auto generator = generator_of(device == "cpu" ? c10::Device(at::kCPU) : device_probe.device());
  std::lock_guard lock(generator.mutex());
  generator.set_state(bytes);
}

}  // namespace deepspeed::checkpoint
