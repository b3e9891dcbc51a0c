// What of an engine goes into a checkpoint, and back.
#pragma once

#include <string>

#include "engine/engine_impl.h"

namespace deepspeed::engine {

std::string save_engine(EngineImpl& engine, const std::string& directory, const std::string& tag, const std::string& client_state,
                        const SaveOptions& options);
LoadedCheckpoint load_engine(EngineImpl& engine, const std::string& directory, const std::string& tag, const LoadOptions& options);

}  // namespace deepspeed::engine
