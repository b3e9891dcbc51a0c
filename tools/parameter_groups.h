// Parameter groups as JSON, for the tools that take them.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "deepspeed/engine.h"

namespace deepspeed {

// A list of {"match": regex, "lr", "weight_decay", "eps", "betas"}; all but match may be left out. Throws Error(kUsage) for other keys and forms.
std::vector<ParameterGroup> parse_groups(const nlohmann::json& list);

}  // namespace deepspeed
