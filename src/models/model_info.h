// Parts of the reading of config.json that others need, too.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "deepspeed/model_info.h"

namespace deepspeed::models {

// "eos_token_id" of a config.json or generation_config.json: absent, one number or a list.
std::vector<int64_t> read_eos_ids(const nlohmann::json& object);

}  // namespace deepspeed::models
