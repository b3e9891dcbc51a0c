#include "checkpoint/load.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/files.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"
#include "formats/safetensors.h"
#include "kernels/cast.h"

namespace deepspeed::checkpoint {

using Json = nlohmann::ordered_json;

namespace {

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kCheckpointDamaged, "checkpoint", base::str(path, ": ", what));
}

// A parameter as it was saved.
struct SavedSlot {
  size_t unit = 0;
  int64_t offset = 0;
  std::vector<int64_t> shape;
};

struct SavedUnit {
  int64_t shard_elements = 0;
  bool trained = false;
};

// The saved side: index and open files.
class Source {
 public:
  explicit Source(std::string path) : path_(std::move(path)) {
    const std::string file = path_ + "/index.json";
    if (!base::exists(file)) {
      throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
                  base::str("load: got no ", file, ", allowed a folder written by save_checkpoint (other layouts are not read yet)"));
    }
    try {
      read_index(Json::parse(base::read_file(file)));
    } catch (const Json::exception& error) {
      damaged(file, base::str("not an index: ", error.what()));
    }
  }

  const std::unordered_map<std::string, SavedSlot>& slots() const { return slots_; }
  const std::vector<SavedUnit>& units() const { return units_; }
  const std::vector<std::string>& state_names() const { return state_names_; }
  int world_size() const { return static_cast<int>(files_.size()); }
  std::string run_json() const { return run_; }
  std::string client_json() const { return client_; }

  const formats::SafetensorsFile& file(size_t rank) {
    if (!open_[rank]) {
      const std::string path = path_ + "/" + files_[rank];
      if (!base::exists(path)) damaged(path, "missing");
      try {
        open_[rank] = std::make_unique<formats::SafetensorsFile>(path);
      } catch (const Error& error) {
        damaged(path, error.what());
      }
    }
    return *open_[rank];
  }

  // out[count] = elements [begin, begin + count) of a unit's buffer, wherever they lie.
  void read(size_t unit, const std::string& kind, int64_t begin, int64_t count, float* out) {
    const int64_t shard = units_[unit].shard_elements;
    const std::string name = base::str("unit.", unit, ".", kind);
    while (count > 0) {
      const int64_t rank = begin / shard;
      const int64_t local = begin % shard;
      const int64_t part = std::min(count, shard - local);
      const auto& source = file(static_cast<size_t>(rank));
      const auto* entry = source.find(name);
      if (!entry) damaged(source.path(), base::str("tensor ", name, " is missing"));
      const DataType type = entry->dtype == formats::Dtype::kBF16  ? DataType::kBFloat16
                            : entry->dtype == formats::Dtype::kF16 ? DataType::kFloat16
                                                                   : DataType::kFloat32;
      const auto width = static_cast<int64_t>(kernels::bytes_of(type));
      if (static_cast<int64_t>(entry->size()) != shard * width) {
        damaged(source.path(), base::str("tensor ", name, ": got ", entry->size(), " bytes, allowed ", shard * width));
      }
      // Data in the file need not be aligned.
      const std::byte* data = source.bytes(*entry).data() + local * width;
      scratch_.resize(static_cast<size_t>(part * width));
      std::memcpy(scratch_.data(), data, scratch_.size());
      kernels::cast_to_float(out, scratch_.data(), type, static_cast<size_t>(part));
      begin += part;
      out += part;
      count -= part;
    }
  }

 private:
  void read_index(const Json& index) {
    const std::string file = path_ + "/index.json";
    if (index.at("format") != kFormatName)
      damaged(file, base::str("format: got ", index.at("format").dump(), ", allowed \"", kFormatName, "\""));
    if (index.at("version") != kFormatVersion)
      damaged(file, base::str("version: got ", index.at("version").dump(), ", allowed ", kFormatVersion));
    for (const auto& name : index.at("files")) {
      const auto text = name.get<std::string>();
      if (text.empty() || text.find('/') != std::string::npos) damaged(file, base::str("file name: got \"", text, "\""));
      files_.push_back(text);
    }
    if (files_.empty() || index.at("world_size") != files_.size()) damaged(file, "world_size and the list of files disagree");
    open_.resize(files_.size());
    // Without the list it is a checkpoint from before there were other optimizers than Adam.
    state_names_ = index.value("states", std::vector<std::string>{"moment", "variance"});
    for (const auto& unit : index.at("units")) {
      SavedUnit saved{unit.at("shard_elements").get<int64_t>(), unit.at("trained").get<bool>()};
      if (saved.shard_elements < 0) damaged(file, "negative shard_elements");
      const int64_t total = saved.shard_elements * static_cast<int64_t>(files_.size());
      for (const auto& parameter : unit.at("parameters")) {
        SavedSlot slot{units_.size(), parameter.at("offset").get<int64_t>(), parameter.at("shape").get<std::vector<int64_t>>()};
        int64_t elements = 1;
        for (const int64_t extent : slot.shape) {
          if (extent < 0 || (extent > 0 && elements > total / extent + 1))
            damaged(file, base::str("shape of ", parameter.at("name").dump()));
          elements *= extent;
        }
        if (slot.offset < 0 || slot.offset + elements > total) damaged(file, base::str("offset of ", parameter.at("name").dump()));
        if (!slots_.emplace(parameter.at("name").get<std::string>(), slot).second) {
          damaged(file, base::str("parameter ", parameter.at("name").dump(), " twice"));
        }
      }
      units_.push_back(saved);
    }
    run_ = index.at("run").dump();
    client_ = index.at("client_state").dump();
  }

  std::string path_;
  std::vector<std::string> files_;
  std::vector<std::string> state_names_;
  std::vector<std::unique_ptr<formats::SafetensorsFile>> open_;
  std::vector<SavedUnit> units_;
  std::unordered_map<std::string, SavedSlot> slots_;
  std::string run_, client_;
  std::vector<std::byte> scratch_;
};

void compare(const Source& source, const Image& image, const std::string& path) {
  std::vector<std::string> problems;
  if (source.state_names() != image.state_names) {
    problems.push_back(base::str("optimizer states: got [", base::join(source.state_names(), ", "), "] there, allowed [",
                                 base::join(image.state_names, ", "), "], those of this run's optimizer"));
  }
  size_t known = 0;
  for (const auto& unit : image.units) {
    for (const auto& slot : unit.layout->slots()) {
      const auto found = source.slots().find(slot.name);
      if (found == source.slots().end()) {
        problems.push_back(base::str(slot.name, " is not in the checkpoint"));
        continue;
      }
      ++known;
      if (found->second.shape != slot.shape) problems.push_back(base::str(slot.name, " has another shape there"));
      if (unit.trained && !source.units()[found->second.unit].trained) {
        problems.push_back(base::str(slot.name, " was frozen there and has no optimizer state"));
      }
    }
  }
  if (known < source.slots().size()) {
    std::unordered_map<std::string, bool> ours;
    for (const auto& unit : image.units) {
      for (const auto& slot : unit.layout->slots()) ours[slot.name] = true;
    }
    for (const auto& [name, slot] : source.slots()) {
      if (!ours.count(name)) problems.push_back(base::str(name, " is not in the model"));
    }
  }
  if (problems.empty()) return;
  std::sort(problems.begin(), problems.end());
  const size_t shown = std::min<size_t>(problems.size(), 10);
  std::string list = base::join({problems.begin(), problems.begin() + static_cast<ptrdiff_t>(shown)}, "; ");
  if (problems.size() > shown) list += base::str("; and ", problems.size() - shown, " more");
  throw Error(ErrorCode::kCheckpointMismatch, "checkpoint", base::str(path, ": model and checkpoint differ: ", list));
}

void fill(Source& source, const std::string& kind, const UnitImage& unit, int rank, at::Tensor& target) {
  const auto range = unit.layout->shard(rank);
  auto values = at::empty({target.numel()}, at::TensorOptions().dtype(at::kFloat));
  auto* out = values.mutable_data_ptr<float>();
  std::fill_n(out, values.numel(), 0.0f);
  for (const auto& slot : unit.layout->slots()) {
    const int64_t begin = std::max(slot.offset, range.begin), end = std::min(slot.offset + slot.elements, range.end);
    if (begin >= end) continue;
    const SavedSlot& saved = source.slots().at(slot.name);
    source.read(saved.unit, kind, saved.offset + begin - slot.offset, end - begin, out + begin - range.begin);
  }
  target.copy_(values);
}

void restore_generator(Source& source, int rank) {
  const auto& file = source.file(static_cast<size_t>(rank));
  const auto* entry = file.find("rng.cpu");
  if (!entry) damaged(file.path(), "tensor rng.cpu is missing");
  auto state = at::empty({static_cast<int64_t>(entry->size())}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(state.mutable_data_ptr(), file.bytes(*entry).data(), entry->size());
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

Loaded load(Communicator& communicator, const std::string& directory, const std::string& tag, Image& image,
            const at::Tensor& device_probe) {
  at::NoGradGuard no_grad;
  Loaded loaded;
  std::string error;
  ErrorCode code = ErrorCode::kCheckpointDamaged;
  std::unique_ptr<Source> source;
  try {
    std::string chosen = tag;
    if (chosen.empty()) {
      if (!base::exists(directory + "/latest")) {
        throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
                    base::str("load: got no ", directory, "/latest, allowed a folder that holds checkpoints, or a tag"));
      }
      chosen = base::read_file(directory + "/latest");
      while (!chosen.empty() && (chosen.back() == '\n' || chosen.back() == ' ')) chosen.pop_back();
    }
    loaded.path = directory + "/" + chosen;
    source = std::make_unique<Source>(loaded.path);
    compare(*source, image, loaded.path);
    loaded.run_json = source->run_json();
    loaded.client_json = source->client_json();
    loaded.world_size = source->world_size();
  } catch (const Error& failure) {
    error = failure.what();
    code = failure.code();
  }
  comm::agree_on_success(communicator, error, code, "checkpoint", "load " + directory, device_probe);
  try {
    for (auto& unit : image.units) {
      fill(*source, "parameter", unit, communicator.rank(), unit.parameter);
      for (size_t i = 0; i < unit.states.size(); ++i) {
        fill(*source, image.state_names[i], unit, communicator.rank(), unit.states[i]);
      }
    }
    if (loaded.world_size == communicator.size()) restore_generator(*source, communicator.rank());
  } catch (const Error& failure) {
    error = failure.what();
  }
  comm::agree_on_success(communicator, error, ErrorCode::kCheckpointDamaged, "checkpoint", "load " + loaded.path, device_probe);
  return loaded;
}

}  // namespace deepspeed::checkpoint
