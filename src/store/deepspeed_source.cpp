// Checkpoints of the real DeepSpeed, as this library's run state and named values.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "formats/zero_checkpoint.h"
#include "store/source.h"

namespace deepspeed::store {

using Json = nlohmann::ordered_json;

namespace {

using formats::PickleValue;
using formats::ZeroWeight;
using Kind = PickleValue::Kind;

// Numbers, strings and containers; what is none of these becomes null and `lost` is set.
Json json_of(const PickleValue& value, bool* lost) {
  switch (value.kind) {
    case Kind::kNone:
      return nullptr;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer;
    case Kind::kFloat:
      return value.number;
    case Kind::kString:
      return value.text;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kSet: {
      Json list = Json::array();
      for (const auto& item : value.items) list.push_back(json_of(*item, lost));
      return list;
    }
    case Kind::kDict: {
      Json dict = Json::object();
      for (const auto& [key, item] : value.entries) {
        const bool named = key->kind == Kind::kString || key->kind == Kind::kInt;
        *lost = *lost || !named;
        if (named) dict[key->kind == Kind::kString ? key->text : std::to_string(key->integer)] = json_of(*item, lost);
      }
      return dict;
    }
    default:
      *lost = true;
      return nullptr;
  }
}

int64_t integer_of(const PickleValue* value, int64_t otherwise) { return value && value->kind == Kind::kInt ? value->integer : otherwise; }

double number_of(const PickleValue* value, double otherwise) {
  if (!value) return otherwise;
  return value->kind == Kind::kFloat ? value->number : value->kind == Kind::kInt ? static_cast<double>(value->integer) : otherwise;
}

// Everything at the top of a model_states file that is not DeepSpeed's own came from the caller.
std::string client_state(const PickleValue& model, const std::string& path) {
  static const std::set<std::string> kOwn = {"module",
                                             "buffer_names",
                                             "optimizer",
                                             "param_shapes",
                                             "frozen_param_shapes",
                                             "frozen_param_fragments",
                                             "shared_params",
                                             "lr_scheduler",
                                             "data_sampler",
                                             "random_ltd",
                                             "sparse_tensor_module_names",
                                             "skipped_steps",
                                             "global_steps",
                                             "global_samples",
                                             "dp_world_size",
                                             "mp_world_size",
                                             "checkpoint_parallel_dimensions",
                                             "ds_config",
                                             "ds_version",
                                             "universal_checkpoint_info",
                                             "num_experts",
                                             "ds_autoep_layers"};
  Json client = Json::object();
  for (const auto& [key, value] : model.entries) {
    if (!key || key->kind != Kind::kString || kOwn.count(key->text)) continue;
    bool lost = false;
    client[key->text] = json_of(*value, &lost);
    if (lost) base::log_warning(path, ": client state '", key->text, "' holds tensors or objects, which are left out");
  }
  return client.dump();
}

std::string run_state(const PickleValue& model, const PickleValue& optimizer, int64_t optimizer_steps, const std::string& path) {
  Json run;
  const int64_t steps = integer_of(model.find("global_steps"), 0);
  run["global_steps"] = steps;
  run["skipped_steps"] = integer_of(model.find("skipped_steps"), 0);
  const PickleValue* config = model.find("ds_config");
  run["micro_steps"] = steps * (config ? integer_of(config->find("gradient_accumulation_steps"), 1) : 1);
  run["global_samples"] = integer_of(model.find("global_samples"), 0);
  run["optimizer_steps"] = optimizer_steps;
  const PickleValue* schedule = model.find("lr_scheduler");
  const PickleValue* iteration = schedule ? schedule->find("last_batch_iteration") : nullptr;
  run["schedule"] = {{"last_batch_iteration", integer_of(iteration, steps - 1)}};
  const PickleValue* groups = optimizer.find("param_groups");
  for (const char* outer : {"base_optimizer_state", "optimizer_state_dict"}) {
    const PickleValue* inner = optimizer.find(outer);
    if (!groups && inner) groups = inner->find("param_groups");
  }
  if (!groups) throw Error(ErrorCode::kCheckpointDamaged, "checkpoint", base::str(path, ": the optimizer has no param_groups"));
  Json rates = Json::array();
  for (const auto& group : groups->items) {
    Json entry{{"lr", number_of(group->find("lr"), 0)}};
    const PickleValue* betas = group->find("betas");
    if (betas && betas->items.size() >= 2) entry["betas"] = {number_of(betas->items[0], 0), number_of(betas->items[1], 0)};
    rates.push_back(std::move(entry));
  }
  run["rates"] = std::move(rates);
  if (const PickleValue* scaler = optimizer.find("loss_scaler"); scaler && scaler->find("cur_iter")) {
    run["loss_scale"] = {{"scale", number_of(scaler->find("cur_scale"), 1)},
                         {"iteration", integer_of(scaler->find("cur_iter"), 0)},
                         {"last_overflow", integer_of(scaler->find("last_overflow_iter"), -1)},
                         {"tolerance", integer_of(scaler->find("cur_hysteresis"), 1)}};
  }
  return run.dump();
}

// `Checkpoint`: formats::ZeroCheckpoint or formats::UniversalCheckpoint.
template <typename Checkpoint>
class DeepSpeedSource final : public Source {
 public:
  DeepSpeedSource(std::string path, std::unique_ptr<Checkpoint> checkpoint, int world_size)
      : path_(std::move(path)), checkpoint_(std::move(checkpoint)), world_size_(world_size) {
    std::set<std::string> theirs;
    std::set<std::string> shared;
    if (const PickleValue* names = checkpoint_->model_state().find("shared_params")) {
      for (const auto& [alias, name] : names->entries) shared.insert(alias->text);
    }
    std::set<std::string> buffers;
    if (const PickleValue* names = checkpoint_->model_state().find("buffer_names")) {
      for (const auto& name : names->items) buffers.insert(name->text);
    }
    for (const ZeroWeight& weight : checkpoint_->weights()) {
      if (shared.count(weight.name)) continue;
      if (buffers.count(weight.name)) {
        weights_[weight.name] = &weight;
        buffers_[weight.name] = {weight.shape, weight.pieces.empty() ? formats::Dtype::kF32 : weight.pieces[0].dtype};
        continue;
      }
      weights_[weight.name] = &weight;
      parameters_[weight.name] = {weight.shape, weight.trained};
      for (const auto& [state, pieces] : weight.states) theirs.insert(state);
    }
    state_names_.assign(theirs.begin(), theirs.end());
    run_ = run_state(checkpoint_->model_state(), checkpoint_->optimizer_state(), checkpoint_->optimizer_steps(), path_);
    client_ = client_state(checkpoint_->model_state(), path_);
  }

  const std::unordered_map<std::string, SavedParameter>& parameters() const override { return parameters_; }
  const std::map<std::string, SavedBuffer>& buffers() const override { return buffers_; }
  const std::vector<std::string>& state_names() const override { return state_names_; }
  int world_size() const override { return world_size_; }
  std::string run_json() const override { return run_; }
  std::string client_json() const override { return client_; }
  std::span<const std::byte> generator(int, const std::string&) override { return {}; }

  bool has_state(const std::string& name, const std::string& state) const override { return weights_.at(name)->states.count(state) > 0; }

  std::vector<std::byte> read_buffer(const std::string& name) override {
    std::vector<std::byte> all;
    for (const auto& piece : weights_.at(name)->pieces) all.insert(all.end(), piece.bytes.begin(), piece.bytes.end());
    return all;
  }

  void read_values(const std::string& name, int64_t begin, int64_t count, float* out) override {
    formats::read_pieces(weights_.at(name)->pieces, static_cast<uint64_t>(begin), static_cast<uint64_t>(count), out);
  }

  void read_state(const std::string& name, const std::vector<std::string>& names, int64_t begin, int64_t count, float* out) override {
    const auto& states = weights_.at(name)->states;
    for (const std::string& candidate : names) {
      const auto found = states.find(candidate);
      if (found != states.end())
        return formats::read_pieces(found->second, static_cast<uint64_t>(begin), static_cast<uint64_t>(count), out);
    }
    throw Error(ErrorCode::kCheckpointDamaged, "checkpoint", base::str(path_, ": ", name, " has no state ", base::join(names, ", ")));
  }

 private:
  std::string path_;
  std::unique_ptr<Checkpoint> checkpoint_;
  int world_size_;
  std::unordered_map<std::string, const ZeroWeight*> weights_;
  std::unordered_map<std::string, SavedParameter> parameters_;
  std::map<std::string, SavedBuffer> buffers_;
  std::vector<std::string> state_names_;
  std::string run_, client_;
};

}  // namespace

std::unique_ptr<Source> open_deepspeed(const std::string& directory, const std::string& tag) {
  const std::string path = directory + "/" + tag;
  if (base::exists(path + "/zero/optimizer_state.pt")) {
    return std::make_unique<DeepSpeedSource<formats::UniversalCheckpoint>>(path, std::make_unique<formats::UniversalCheckpoint>(path), 0);
  }
  auto checkpoint = std::make_unique<formats::ZeroCheckpoint>(directory, formats::ZeroCheckpoint::Options{tag, true});
  const auto ranks = static_cast<int>(checkpoint->ranks());
  return std::make_unique<DeepSpeedSource<formats::ZeroCheckpoint>>(path, std::move(checkpoint), ranks);
}

}  // namespace deepspeed::store
