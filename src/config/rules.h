// Rules between keys.
#pragma once

#include "config/settings.h"

namespace deepspeed::config {

// Adds an issue for every combination that cannot work and a note for every one that is odd.
void check_rules(Settings& settings);

}  // namespace deepspeed::config
