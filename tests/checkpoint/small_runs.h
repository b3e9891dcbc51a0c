// A small model, its engine and a folder for its checkpoints.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/small_models.h"

namespace deepspeed::testing {

inline std::string fresh_directory(const std::string& name) {
  const auto path = std::filesystem::temp_directory_path() / ("ds_checkpoint_" + name + "_" + std::to_string(::getpid()));
  std::filesystem::remove_all(path);
  return path.string();
}

struct Ranks {
  std::shared_ptr<OddNet> net;
  std::unique_ptr<Engine> engine;
};

inline Ranks make(std::shared_ptr<Communicator> communicator, int stage, const std::string& more = "") {
  static std::mutex construction;
  Ranks ranks;
  {
    std::lock_guard lock(construction);
    ranks.net = std::make_shared<OddNet>();
  }
  EngineOptions options;
  options.config_json = config_json(
      {.stage = stage, .more = R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6, "warmup_max_lr": 0.02}})" + more});
  options.communicator = std::move(communicator);
  ranks.engine = initialize(ranks.net, options);
  return ranks;
}

inline double train_step(Ranks& ranks, int step) {
  // Every rank sees all rows, so that the curve does not depend on the world size.
  auto loss = ranks.net->forward(rows(step, 0));
  ranks.engine->backward(loss);
  ranks.engine->step();
  return loss.item<double>();
}

template <typename Call>
std::pair<ErrorCode, std::string> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kInternal, "no error"};
}

}  // namespace deepspeed::testing
