#include "formats/zero_checkpoint.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files.h"
#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

uint64_t product(const std::vector<int64_t>& shape) {
  uint64_t elements = 1;
  for (const int64_t size : shape) elements *= static_cast<uint64_t>(size);
  return elements;
}

std::string trimmed(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = (bits >> 10) & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent == 31 ? 255u : exponent + 112u) << 23) | (fraction << 13));
}

// Any stored type as fp32.
void widen(float* out, std::span<const std::byte> in, Dtype dtype, uint64_t count) {
  const auto each = [&]<typename T>(T, auto&& convert) {
    for (uint64_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, in.data() + i * sizeof(T), sizeof(T));
      out[i] = convert(value);
    }
  };
  const auto plain = [](auto value) { return static_cast<float>(value); };
  switch (dtype) {
    case Dtype::kF32:
      std::memcpy(out, in.data(), count * sizeof(float));
      return;
    case Dtype::kBF16:
      return each(uint16_t{}, [](uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); });
    case Dtype::kF16:
      return each(uint16_t{}, half_to_float);
    case Dtype::kF64:
      return each(double{}, plain);
    case Dtype::kI64:
      return each(int64_t{}, plain);
    case Dtype::kI32:
      return each(int32_t{}, plain);
    case Dtype::kI16:
      return each(int16_t{}, plain);
    case Dtype::kI8:
      return each(int8_t{}, plain);
    default:  // kU8, kBool: all that a torch file can hold
      return each(uint8_t{}, plain);
  }
}

}  // namespace

// A run of elements that lies in several pieces.
struct ZeroCheckpoint::Run {
  std::vector<ZeroWeight::Piece> pieces;
  uint64_t elements = 0;

  void add(std::span<const std::byte> bytes, Dtype dtype) {
    pieces.push_back({bytes, dtype});
    elements += bytes.size() / dtype_size(dtype);
  }
  // Elements [begin, begin + count), all inside.
  std::vector<ZeroWeight::Piece> part(uint64_t begin, uint64_t count) const {
    std::vector<ZeroWeight::Piece> out;
    for (const auto& piece : pieces) {
      const size_t width = dtype_size(piece.dtype);
      const uint64_t size = piece.bytes.size() / width;
      if (begin < size && count > 0) {
        const uint64_t taken = std::min(count, size - begin);
        out.push_back({piece.bytes.subspan(begin * width, taken * width), piece.dtype});
        count -= taken;
        begin = 0;
      } else {
        begin -= std::min(begin, size);
      }
    }
    return out;
  }
};

namespace {

std::vector<int64_t> shape_of(const PickleValue& value, const std::string& name) {
  std::vector<int64_t> shape;
  for (const auto& item : value.items) {
    if (item->kind != Kind::kInt || item->integer < 0)
      throw Error(ErrorCode::kCheckpointDamaged, "formats", base::str("shape of ", name, " is no list of sizes"));
    shape.push_back(item->integer);
  }
  return shape;
}

}  // namespace

uint64_t ZeroWeight::elements() const { return product(shape); }

void read_pieces(const std::vector<ZeroWeight::Piece>& pieces, uint64_t begin, uint64_t count, float* out) {
  for (const auto& piece : pieces) {
    const size_t width = dtype_size(piece.dtype);
    const uint64_t size = piece.bytes.size() / width;
    if (begin >= size) {
      begin -= size;
      continue;
    }
    const uint64_t taken = std::min(count, size - begin);
    widen(out, piece.bytes.subspan(begin * width), piece.dtype, taken);
    out += taken;
    count -= taken;
    begin = 0;
    if (count == 0) return;
  }
}

// A step count: a number, or a tensor of one element.
static int64_t count_of(const PickleValue& value, const TorchFile& file) {
  if (value.kind == Kind::kInt) return value.integer;
  if (value.kind == Kind::kFloat) return static_cast<int64_t>(value.number);
  if (value.kind != Kind::kTensor || product(value.tensor.shape) != 1) return 0;
  const size_t width = dtype_size(value.tensor.dtype);
  float steps = 0;
  widen(&steps, file.storage(value.tensor).subspan(value.tensor.offset * width, width), value.tensor.dtype, 1);
  return static_cast<int64_t>(steps);
}

static const PickleValue* find_number(const PickleValue& dict, size_t number) {
  for (const auto& [key, value] : dict.entries) {
    if (key && key->kind == Kind::kInt && key->integer == static_cast<int64_t>(number)) return value;
  }
  return nullptr;
}

const PickleValue* ZeroCheckpoint::state_of_group(size_t rank, size_t group) const {
  const PickleValue* base = optimizer_state(rank).find(stage_ == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  if (!base) return nullptr;
  if (base->kind == Kind::kList) return group < base->items.size() ? base->items[group] : nullptr;  // without padding ("elastic")
  const PickleValue* states = base->find("state");
  return states ? find_number(*states, group) : nullptr;
}

void ZeroCheckpoint::note_steps(const PickleValue& state, const TorchFile& file) {
  if (const PickleValue* step = state.find("step")) optimizer_steps_ = std::max(optimizer_steps_, count_of(*step, file));
}

void ZeroCheckpoint::damaged(const std::string& what) const {
  throw Error(ErrorCode::kCheckpointDamaged, "formats", base::str("ZeRO checkpoint ", folder_, ": ", what));
}

ZeroCheckpoint::ZeroCheckpoint(const std::string& directory, const Options& options) {
  std::string tag = options.tag;
  if (tag.empty()) {
    const std::string latest = directory + "/latest";
    if (!base::exists(latest)) {
      throw Error(ErrorCode::kCheckpointMissing, "formats", base::str("no ", latest, ": name a checkpoint in ", directory, " with --tag"));
    }
    tag = trimmed(base::read_file(latest));
  }
  folder_ = directory + "/" + tag;
  if (tag.empty() || !fs::is_directory(folder_)) {
    throw Error(ErrorCode::kCheckpointMissing, "formats",
                base::str("no checkpoint ", folder_, options.tag.empty() ? " (named by latest)" : ""));
  }
  open_files();
  if (stage_ == 3) {
    read_partitioned();
  } else {
    read_groups();
  }
  read_rest(options.frozen_parameters);
}

void ZeroCheckpoint::open_files() {
  std::map<size_t, std::string> models, optimizers;  // by rank
  std::string whole_model;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    const auto refuse = [&](const char* what) {
      throw Error(ErrorCode::kNotBuilt, "formats",
                  base::str(entry.path().string(), ": ", what, " are not read yet, allowed data-parallel checkpoints"));
    };
    if (name.starts_with("layer_") && name.ends_with("model_states.pt"))
      refuse(name.find("expert") == std::string::npos ? "pipeline layers" : "experts");
    if (name.starts_with("expert_") || name.starts_with("expp_rank_")) refuse("experts");
    size_t rank = 0, model_rank = 0;
    int used = 0;
    const char* rest = name.c_str() + (name.starts_with("bf16_") ? 5 : 0);
    if (std::sscanf(rest, "zero_pp_rank_%zu_mp_rank_%zu_%n", &rank, &model_rank, &used) == 2 && used > 0) {
      if (model_rank != 0) refuse("parts of model-parallel ranks");
      const std::string kind = rest + used;
      if (kind == "model_states.pt") models[rank] = entry.path().string();
      if (kind == "optim_states.pt" && !optimizers.emplace(rank, entry.path().string()).second)
        damaged(base::str("two optimizer files of rank ", rank));
    } else if (std::sscanf(rest, "mp_rank_%zu_%n", &model_rank, &used) == 1 && used > 0 && std::string(rest + used) == "model_states.pt") {
      if (model_rank != 0) refuse("parts of model-parallel ranks");
      whole_model = entry.path().string();
    }
  }
  if (optimizers.empty()) {
    throw Error(ErrorCode::kCheckpointMissing, "formats",
                base::str(folder_, " has no ..._optim_states.pt, allowed ZeRO checkpoints of stages 1 to 3"));
  }
  for (const auto& [rank, path] : optimizers) {
    if (rank != optimizer_files_.size()) damaged(base::str("the optimizer file of rank ", optimizer_files_.size(), " is missing"));
    optimizer_files_.push_back(std::make_unique<TorchFile>(path));
  }
  const PickleValue& state = optimizer_state(0);
  // The bf16 optimizer of stages 1 and 2 does not say its stage.
  const PickleValue* stage = state.find("zero_stage");
  if (stage && stage->kind == Kind::kObject && stage->items.size() == 1) stage = stage->items[0];
  stage_ = stage ? static_cast<int>(stage->integer) : state.find("fp32_flat_groups") ? 3 : 1;
  if (stage_ < 1 || stage_ > 3) damaged(base::str("zero_stage: got ", stage_, ", allowed 1 to 3"));
  uint64_t ranks = 0;
  const PickleValue& count = state.at("partition_count", "optimizer_state_dict");
  if (count.kind == Kind::kInt) ranks = static_cast<uint64_t>(count.integer);
  for (const auto& item : count.items) ranks = std::max(ranks, static_cast<uint64_t>(item->integer));
  if (ranks != optimizer_files_.size())
    damaged(base::str("got optimizer files of ", optimizer_files_.size(), " ranks, allowed the ", ranks, " that saved it"));
  if (stage_ < 3) {
    if (whole_model.empty()) damaged("mp_rank_00_model_states.pt is missing");
    model_files_.push_back(std::make_unique<TorchFile>(whole_model));
    return;
  }
  for (const auto& [rank, path] : models) {
    if (rank != model_files_.size()) damaged(base::str("the model file of rank ", model_files_.size(), " is missing"));
    model_files_.push_back(std::make_unique<TorchFile>(path));
  }
  if (model_files_.size() != ranks) damaged(base::str("got model files of ", model_files_.size(), " ranks, allowed ", ranks));
}

const PickleValue& ZeroCheckpoint::optimizer_state(size_t rank) const {
  const TorchFile& file = *optimizer_files_[rank];
  return file.root().at("optimizer_state_dict", file.path());
}

// The bytes of a tensor; a copy where it does not lie back to back.
static std::span<const std::byte> bytes_of(const TorchFile& file, const PickleValue& value, const std::string& what,
                                           std::vector<std::unique_ptr<std::vector<std::byte>>>* copies) {
  if (value.kind != Kind::kTensor) {
    throw Error(ErrorCode::kCheckpointDamaged, "formats",
                base::str(file.path(), ": ", what, ": got a ", value.kind_name(), ", allowed a tensor"));
  }
  const PickleTensor& tensor = value.tensor;
  const size_t width = dtype_size(tensor.dtype);
  const uint64_t bytes = product(tensor.shape) * width;
  int64_t dense = 1;
  bool contiguous = true;
  for (size_t d = tensor.shape.size(); d-- > 0;) {
    contiguous = contiguous && (tensor.shape[d] == 1 || tensor.stride[d] == dense);
    dense *= tensor.shape[d];
  }
  if (bytes == 0) return {};
  if (contiguous) return file.storage(tensor).subspan(tensor.offset * width, bytes);
  if (bytes > file.storage(tensor).size())
    throw Error(ErrorCode::kNotBuilt, "formats", base::str(file.path(), ": ", what, ": an expanded tensor"));
  copies->push_back(std::make_unique<std::vector<std::byte>>(bytes));
  file.read(tensor, copies->back()->data());
  return *copies->back();
}

// The tensors of an optimizer's state that are as long as the run of weights beside them, or longer by the run's padding.
void ZeroCheckpoint::add_states(size_t rank, size_t group, uint64_t elements, std::map<std::string, Run>* runs) {
  const PickleValue* state = state_of_group(rank, group);
  if (!state) return;
  const TorchFile& file = *optimizer_files_[rank];
  note_steps(*state, file);
  for (const auto& [key, value] : state->entries) {
    if (!key || key->kind != Kind::kString || value->kind != Kind::kTensor || value->tensor.shape.size() != 1 ||
        static_cast<uint64_t>(value->tensor.shape[0]) < elements || key->text == "step") {
      continue;
    }
    const auto bytes = bytes_of(file, *value, key->text, &copies_);
    (*runs)[key->text].add(bytes.first(elements * dtype_size(value->tensor.dtype)), value->tensor.dtype);
  }
}

void ZeroCheckpoint::read_groups() {
  const TorchFile& model = *model_files_[0];
  const auto& shapes = model.root().at("param_shapes", model.path()).items;
  for (size_t group = 0; group < shapes.size(); ++group) {
    Run run;
    std::map<std::string, Run> states;
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const auto& runs = optimizer_state(rank).at("single_partition_of_fp32_groups", optimizer_files_[rank]->path()).items;
      if (runs.size() != shapes.size()) damaged(base::str("rank ", rank, " has ", runs.size(), " groups, allowed ", shapes.size()));
      const std::string what = base::str("weights of group ", group);
      run.add(bytes_of(*optimizer_files_[rank], *runs[group], what, &copies_), runs[group]->tensor.dtype);
      add_states(rank, group, product(runs[group]->tensor.shape), &states);
    }
    uint64_t at = 0;
    for (const auto& [key, value] : shapes[group]->entries) {
      ZeroWeight weight{key->text, shape_of(*value, key->text), {}, false, {}};
      if (weight.elements() > run.elements - at) damaged(base::str("group ", group, " ends inside ", weight.name));
      weight.pieces = run.part(at, weight.elements());
      weight.trained = true;
      for (const auto& [state, values] : states) weight.states[state] = values.part(at, weight.elements());
      at += weight.elements();
      weights_.push_back(std::move(weight));
    }
    // What follows is padding to a multiple of twice the ranks.
    if (run.elements - at >= 2 * ranks()) {
      damaged(base::str("group ", group, " has ", run.elements, " elements, its parameters ", at,
                        ": other parameters than it was saved with?"));
    }
  }
}

void ZeroCheckpoint::read_partitioned() {
  std::vector<Run> runs(ranks());
  std::vector<std::map<std::string, Run>> states(ranks());
  for (size_t rank = 0; rank < ranks(); ++rank) {
    const auto& parts = optimizer_state(rank).at("fp32_flat_groups", optimizer_files_[rank]->path()).items;
    for (size_t part = 0; part < parts.size(); ++part) {
      runs[rank].add(bytes_of(*optimizer_files_[rank], *parts[part], "flat weights", &copies_), parts[part]->tensor.dtype);
      add_states(rank, part, product(parts[part]->tensor.shape), &states[rank]);
    }
    if (runs[rank].elements != runs[0].elements)
      damaged(base::str("rank ", rank, " has ", runs[rank].elements, " elements, rank 0 ", runs[0].elements));
  }
  const TorchFile& model = *model_files_[0];
  uint64_t at = 0;
  for (const auto& group : model.root().at("param_shapes", model.path()).items) {
    for (const auto& [key, value] : group->entries) {
      ZeroWeight weight{key->text, shape_of(*value, key->text), {}, false, {}};
      const uint64_t elements = weight.elements(), each = (elements + ranks() - 1) / ranks();
      if (each > runs[0].elements - at) damaged(base::str("the flat weights end inside ", weight.name));
      for (size_t rank = 0; rank < ranks(); ++rank) {
        const uint64_t begin = std::min(elements, rank * each), end = std::min(elements, begin + each);
        for (auto& piece : runs[rank].part(at, end - begin)) weight.pieces.push_back(piece);
        for (const auto& [state, values] : states[rank]) {
          for (auto& piece : values.part(at, end - begin)) weight.states[state].push_back(piece);
        }
      }
      weight.trained = true;
      at += each;
      weights_.push_back(std::move(weight));
    }
  }
  if (at != runs[0].elements) damaged(base::str("ranks have ", runs[0].elements, " elements each, the parameters take ", at));
}

void ZeroCheckpoint::read_rest(bool frozen_parameters) {
  const TorchFile& model = *model_files_[0];
  const PickleValue& root = model.root();
  const PickleValue& module = root.at("module", model.path());
  if (const PickleValue* names = root.find("buffer_names")) {
    for (const auto& name : names->items) {
      const PickleValue* value = module.find(name->text);
      if (!value) continue;  // not persistent
      const auto bytes = bytes_of(model, *value, name->text, &copies_);
      weights_.push_back({name->text, value->tensor.shape, {{bytes, value->tensor.dtype}}, false, {}});
    }
  }
  const PickleValue* shapes = root.find("frozen_param_shapes");
  if (frozen_parameters && shapes && shapes->kind == Kind::kDict) {
    for (const auto& [key, shape] : shapes->entries) {
      ZeroWeight weight{key->text, shape_of(*shape, key->text), {}, false, {}};
      uint64_t missing = weight.elements();
      for (const auto& file : model_files_) {
        const PickleValue* fragments = file->root().find("frozen_param_fragments");
        const PickleValue* fragment = fragments ? fragments->find(key->text) : nullptr;
        if (!fragment)
          damaged(base::str("frozen parameter ", key->text, " was left out when it was saved: leave frozen ones out here, too"));
        auto bytes = bytes_of(*file, *fragment, key->text, &copies_);
        const size_t width = dtype_size(fragment->tensor.dtype);
        const uint64_t taken = std::min(missing, bytes.size() / width);  // the last rank's is padded
        weight.pieces.push_back({bytes.first(taken * width), fragment->tensor.dtype});
        missing -= taken;
      }
      if (missing > 0) damaged(base::str("frozen parameter ", key->text, " lacks ", missing, " elements"));
      weights_.push_back(std::move(weight));
    }
  }
  if (const PickleValue* shared = root.find("shared_params"); shared && shared->kind == Kind::kDict) {
    for (const auto& [alias, name] : shared->entries) {
      const auto found =
          std::find_if(weights_.begin(), weights_.end(), [&](const ZeroWeight& weight) { return weight.name == name->text; });
      if (found == weights_.end()) continue;
      ZeroWeight copy = *found;
      copy.name = alias->text;
      weights_.push_back(std::move(copy));
    }
  }
  std::set<std::string> names;
  for (const ZeroWeight& weight : weights_) {
    if (!names.insert(weight.name).second) damaged(base::str("parameter ", weight.name, " is there twice"));
    uint64_t elements = 0;
    for (const auto& piece : weight.pieces) elements += piece.bytes.size() / dtype_size(piece.dtype);
    if (elements != weight.elements())
      damaged(base::str("parameter ", weight.name, ": got ", elements, " elements, allowed ", weight.elements()));
  }
}

UniversalCheckpoint::UniversalCheckpoint(const std::string& folder) {
  const auto damaged = [&](const std::string& what) {
    throw Error(ErrorCode::kCheckpointDamaged, "formats", base::str("universal checkpoint ", folder, ": ", what));
  };
  std::vector<std::string> models;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with("model_states.pt")) models.push_back(entry.path().string());
  }
  if (models.empty()) damaged("no ..._model_states.pt");
  model_ = std::make_unique<TorchFile>(*std::min_element(models.begin(), models.end()));
  optimizer_ = std::make_unique<TorchFile>(folder + "/zero/optimizer_state.pt");
  // Stage 3 keeps the step beside the flat states, and shapes in the model's file only.
  if (const PickleValue* inner = optimizer_->root().find("optimizer_state_dict")) {
    const PickleValue* states = inner->find("state");
    const PickleValue* first = states ? find_number(*states, 0) : nullptr;
    const PickleValue* step = first ? first->find("step") : nullptr;
    if (step) optimizer_steps_ = count_of(*step, *optimizer_);
  }
  for (const auto& group : model_->root().at("param_shapes", model_->path()).items) {
    for (const auto& [key, value] : group->entries) {
      ZeroWeight weight;
      weight.name = key->text;
      weight.shape = shape_of(*value, key->text);
      weight.trained = true;
      const std::string own = folder + "/zero/" + key->text;
      if (!fs::is_directory(own)) damaged(base::str("no folder zero/", key->text));
      for (const auto& entry : fs::directory_iterator(own)) {
        if (entry.path().extension() != ".pt") continue;
        files_.push_back(std::make_unique<TorchFile>(entry.path().string()));
        const TorchFile& file = *files_.back();
        const std::string state = entry.path().stem().string();
        const PickleValue& found = file.root().kind == Kind::kDict ? file.root().at("param", file.path()) : file.root();
        if (state == "step") {
          optimizer_steps_ = std::max(optimizer_steps_, count_of(found, file));
          continue;
        }
        const auto bytes = bytes_of(file, found, weight.name, &copies_);
        const Dtype dtype = found.tensor.dtype;
        if (bytes.size() != weight.elements() * dtype_size(dtype)) {
          damaged(base::str(file.path(), ": got ", bytes.size() / dtype_size(dtype), " elements, allowed ", weight.elements()));
        }
        (state == "fp32" ? weight.pieces : weight.states[state]).push_back({bytes, dtype});
      }
      if (weight.pieces.empty()) damaged(base::str("no zero/", weight.name, "/fp32.pt"));
      weights_.push_back(std::move(weight));
    }
  }
}

std::vector<std::string> write_fp32_weights(const ZeroCheckpoint& checkpoint, const std::string& output, uint64_t max_shard_bytes) {
  std::vector<std::vector<const ZeroWeight*>> shards(1);
  uint64_t size = 0, total = 0;
  for (const ZeroWeight& weight : checkpoint.weights()) {
    const uint64_t bytes = weight.elements() * sizeof(float);
    if (size > 0 && size + bytes > max_shard_bytes) {
      shards.emplace_back();
      size = 0;
    }
    shards.back().push_back(&weight);
    size += bytes;
    total += bytes;
  }
  base::make_directories(output);
  std::vector<std::string> files;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    std::array<char, 64> name{};
    std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", shard + 1, shards.size());
    files.push_back(shards.size() == 1 ? "model.safetensors" : name.data());
    std::vector<TensorSpec> specs;
    for (const ZeroWeight* weight : shards[shard]) specs.push_back({weight->name, Dtype::kF32, weight->shape});
    SafetensorsWriter writer(output + "/" + files.back(), std::move(specs));
    std::vector<float> block(1 << 16);
    for (const ZeroWeight* weight : shards[shard]) {
      map[weight->name] = files.back();
      if (weight->elements() == 0) writer.append({});
      for (const auto& piece : weight->pieces) {
        const size_t width = dtype_size(piece.dtype);
        const uint64_t elements = piece.bytes.size() / width;
        for (uint64_t begin = 0; begin < elements; begin += block.size()) {
          const uint64_t count = std::min<uint64_t>(block.size(), elements - begin);
          widen(block.data(), piece.bytes.subspan(begin * width), piece.dtype, count);
          writer.append(std::as_bytes(std::span(block.data(), count)));
        }
      }
    }
    writer.finish(true);
  }
  if (shards.size() > 1) {
    files.push_back("model.safetensors.index.json");
    OutputFile index(output + "/" + files.back());
    index.write(nlohmann::ordered_json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
    index.commit(true);
  }
  return files;
}

}  // namespace deepspeed::formats
