// One function per family of models; causal_lm.cpp chooses.
#pragma once

#include <memory>

#include "deepspeed/models.h"

namespace deepspeed::models {

// Weights are uninitialised.
std::shared_ptr<CausalLM> build_llama(ModelInfo info);  // also qwen2
std::shared_ptr<CausalLM> build_gpt2(ModelInfo info);
std::shared_ptr<CausalLM> build(ModelInfo info);

}  // namespace deepspeed::models
