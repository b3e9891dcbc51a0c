// Ranks that would cut their shards differently find out before they exchange any.
#pragma once

#include <string>

#include "deepspeed/comm.h"
#include "tensor/parameter_list.h"
#include "zero/unit.h"

namespace deepspeed::engine {

// What the layout of shards follows from, a line per item.
std::string describe_model(const tensor::ModuleTensors& tensors, int stage);
std::string describe_units(const std::vector<std::unique_ptr<zero::Unit>>& units);

// Collective. Throws Error(kShardLayout) on every rank unless all have the same text; the message shows the first line in which two of them differ. With
// DS_DISABLE_SHARD_CHECK=1 that is a warning. One small gather when all is well.
void compare_layouts(Communicator& communicator, const std::string& description, const std::string& when, const at::Tensor& device_probe);

}  // namespace deepspeed::engine
