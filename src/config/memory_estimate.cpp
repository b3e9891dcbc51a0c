#include "deepspeed/memory_estimate.h"

#include <algorithm>

namespace deepspeed {
namespace {

// Per parameter: weights and gradients in 16 bit 4, masters and two moments in fp32 12, gradients in fp32 2 more at the step.
constexpr int64_t kWeights = 2, kStates = 16, kAll = 18;

int64_t scaled(int64_t bytes, double factor) { return static_cast<int64_t>(static_cast<double>(bytes) * factor); }

}  // namespace

EstimatedBytes estimate_zero2(const EstimateInput& in, bool offload_optimizer) {
  const int64_t devices = in.nodes * in.devices_per_node;
  if (offload_optimizer) return {scaled(in.parameters * std::max(4 * devices, kStates), in.buffer_factor), kWeights * in.parameters};
  return {scaled(in.parameters * 4 * in.devices_per_node, in.buffer_factor), kWeights * in.parameters + kAll * in.parameters / devices};
}

EstimatedBytes estimate_zero3(const EstimateInput& in, bool offload_optimizer, bool offload_parameters, bool sharded_start) {
  const int64_t devices = in.nodes * in.devices_per_node;
  const int64_t layer = 4 * in.largest_layer_parameters;
  const auto parameters = static_cast<double>(in.parameters);
  const auto whole_copies = static_cast<double>(4 * in.devices_per_node);
  const auto on_host = [&](int64_t states) {
    const double share = static_cast<double>(states) / static_cast<double>(in.nodes);
    return static_cast<int64_t>(parameters * (sharded_start ? share : std::max(whole_copies, share)) * in.buffer_factor);
  };
  if (offload_optimizer && offload_parameters) return {on_host(kAll), layer};
  if (offload_optimizer) return {on_host(kStates), layer + kWeights * in.parameters / devices};
  const int64_t start = sharded_start ? layer * in.devices_per_node : 4 * in.devices_per_node * in.parameters;
  return {scaled(start, in.buffer_factor), layer + kAll * in.parameters / devices};
}

}  // namespace deepspeed
