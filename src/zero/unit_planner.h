// Which parameters share a unit.
#pragma once

#include <string>
#include <vector>

#include "deepspeed/config.h"
#include "tensor/parameter_list.h"
#include "tensor/unit_layout.h"
#include "zero/policy.h"

namespace deepspeed::zero {

// A parameter as the planner sees it.
struct PlannedParameter {
  std::string name;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  bool trainable = true;
  int group = 0;  // optimizer group; meaningless when frozen
};

struct PlannedUnit {
  std::vector<size_t> members;  // indices into the parameters, in order
  bool trainable = true;
  int group = 0;
  bool always_whole = true;  // every rank keeps all of it between steps
};

// Rules:
// - one unit holds parameters of one optimizer group, all trained or all frozen;
// - sharded parameters (stage 3): one unit per block of the model (names up to their first number: "model.layers.3"), else per module, so that what
//   is used together is gathered together. Parameters of at most param_persistence_threshold elements stay whole until
//   model_persistence_threshold is used up;
// - whole parameters: runs of neighbours, several per model so that their reduction overlaps backward;
// - no unit is larger than reduce_bucket_size elements unless one parameter is.
std::vector<PlannedUnit> plan_units(const std::vector<PlannedParameter>& parameters, const Policy& policy, const Config::Zero& zero);

}  // namespace deepspeed::zero
