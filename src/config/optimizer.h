// Rules of the optimizer section.
#pragma once

#include <nlohmann/json.hpp>

#include "config/settings.h"

namespace deepspeed::config {

// Judges optimizer.type and which parameters it takes; adds issues and notes.
void check_optimizer(Settings& settings);

// The resolved optimizer. Call only when check_optimizer left no issue.
Config::Optimizer make_optimizer(const Settings& settings);

// Every parameter that the optimizer's type takes, by its name in optimizer.params, with the value that a run uses.
nlohmann::json optimizer_values(const Config::Optimizer& optimizer);

}  // namespace deepspeed::config
