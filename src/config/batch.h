// The batch triple.
#pragma once

#include <cstdint>

#include "config/settings.h"

namespace deepspeed::config {

// Fills the triple and data_parallel_size of `config` for `world_size` ranks, or adds issues. What is missing of
// train batch = micro batch * accumulation * data-parallel ranks is inferred; whatever comes out must fit exactly.
void resolve_batch(Settings& settings, int64_t world_size, Config& config);

}  // namespace deepspeed::config
