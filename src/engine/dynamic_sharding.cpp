#include "deepspeed/experimental/dynamic_sharding.h"

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/text.h"
#include "config/relaxed_json.h"
#include "engine/engine_impl.h"
#include "store/source.h"

namespace deepspeed::experimental::dynamic_sharding {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTag = "handed_over";
constexpr const char* kTotal = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";

// With the batch sizes of the old group; what follows from them and the number of ranks is left to be inferred.
std::string with_batch_sizes(const EngineOptions& options, const Json& handed) {
  const std::string text = options.config_path.empty() ? options.config_json : base::read_file(options.config_path);
  auto parsed = config::parse_relaxed_json(text);
  // The engine reports every error of a configuration; here it is enough to know that there is one.
  if (!parsed.value.is_object()) return text;
  parsed.value[kTotal] = handed.at(kTotal);
  parsed.value[kMicro] = handed.at(kMicro);
  parsed.value.erase("gradient_accumulation_steps");
  return parsed.value.dump();
}

}  // namespace

void hand_over(Engine& engine, const std::string& directory, const std::string& client_state) {
  engine.impl().expect_between_boundaries("hand_over");
  const auto batch = engine.get_batch_info();
  const Json wrapped{{kTotal, batch.train_batch_size}, {kMicro, batch.train_micro_batch_size_per_gpu}, {"client_state", client_state}};
  engine.save_checkpoint(directory, kTag, wrapped.dump());
}

Taken take_over(std::shared_ptr<torch::nn::Module> model, EngineOptions options, const std::string& directory) {
  if (options.config_path.empty() == options.config_json.empty()) {
    throw Error(ErrorCode::kUsage, "engine", "take_over: exactly one of config_path and config_json must be given");
  }
  if (!options.communicator) options.communicator = init_distributed();
  const Json handed = Json::parse(store::open_source(store::disk(), directory, kTag)->client_json(), nullptr, false);
  if (!handed.is_object() || !handed.contains(kTotal) || !handed.contains(kMicro) || !handed.contains("client_state")) {
    throw Error(ErrorCode::kCheckpointMismatch, "engine",
                base::str("take_over: got ", directory, ", allowed a folder written by hand_over"));
  }
  options.config_json = with_batch_sizes(options, handed);
  options.config_path.clear();
  const auto communicator = options.communicator;
  Taken taken{initialize(std::move(model), options), handed["client_state"].get<std::string>()};
  taken.engine->load_checkpoint(directory, kTag);
  // All have what they need.
  communicator->barrier("taken over");
  if (communicator->rank() == 0) {
    store::disk().remove(base::str(directory, "/", kTag));
    store::disk().remove(base::str(directory, "/latest"));
  }
  return taken;
}

}  // namespace deepspeed::experimental::dynamic_sharding
