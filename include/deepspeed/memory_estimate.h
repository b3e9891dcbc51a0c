// Bytes that a model's parameters, gradients and optimizer states take with ZeRO and Adam in 16 bit, for planning before there is a model. An engine
// that exists says more exactly what it takes: Engine::memory_plan().
#pragma once

#include <cstdint>

namespace deepspeed {

struct EstimateInput {
  int64_t parameters = 0;
  int64_t largest_layer_parameters = 0;  // stage 3: of one layer, gathered as a whole
  int64_t nodes = 1;
  int64_t devices_per_node = 1;
  double buffer_factor = 1.5;  // what host memory takes beside the states
};

struct EstimatedBytes {
  int64_t host = 0;    // per node
  int64_t device = 0;  // per device
};

EstimatedBytes estimate_zero2(const EstimateInput& input, bool offload_optimizer);
// `sharded_start`: the model is built in shards (zero.Init), not whole on every rank first.
EstimatedBytes estimate_zero3(const EstimateInput& input, bool offload_optimizer, bool offload_parameters, bool sharded_start);

}  // namespace deepspeed
