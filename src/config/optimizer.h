// Rules of the optimizer section.
#pragma once

#include "config/settings.h"

namespace deepspeed::config {

// Judges optimizer.type and which parameters it takes; adds issues and notes.
void check_optimizer(Settings& settings);

// The resolved optimizer. Call only when check_optimizer left no issue.
Config::Optimizer make_optimizer(const Settings& settings);

}  // namespace deepspeed::config
