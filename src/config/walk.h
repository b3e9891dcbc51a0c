// Walks the object of a configuration along the schema.
#pragma once

#include <nlohmann/json.hpp>

#include "config/settings.h"

namespace deepspeed::config {

// Checks every key on its own: known, of the right type and range, built. `root` must be an object. Rules between keys are in rules.h.
Settings walk_configuration(const nlohmann::json& root);

}  // namespace deepspeed::config
