// Checkpoints of format version 1, as this library wrote them up to 0.2: index.json and a safetensors file per rank. Units are flat buffers, cut into equal shards.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "formats/safetensors.h"
#include "kernels/cast.h"
#include "store/source.h"

namespace deepspeed::store {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kFormat = "deepspeed-native-checkpoint";
constexpr int kVersion = 1;

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

// Index and open files.
class NativeV1Source final : public Source {
 public:
  explicit NativeV1Source(std::string path) : path_(std::move(path)) {
    const std::string file = path_ + "/index.json";
    if (!base::exists(file)) {
      throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
                  base::str("load: got no ", file, ", allowed a folder written by save_checkpoint"));
    }
    try {
      read_index(Json::parse(base::read_file(file)));
    } catch (const Json::exception& error) {
      damaged(file, base::str("not an index: ", error.what()));
    }
  }

  const std::unordered_map<std::string, SavedParameter>& parameters() const override { return parameters_; }
  const std::vector<std::string>& state_names() const override { return state_names_; }
  int world_size() const override { return static_cast<int>(files_.size()); }
  std::string run_json() const override { return run_; }
  std::string client_json() const override { return client_; }

  void read_values(const std::string& name, int64_t begin, int64_t count, float* out) override {
    const SavedSlot& slot = slots_.at(name);
    read_unit(slot.unit, "parameter", slot.offset + begin, count, out);
  }

  // Files of this library have its own name, which is the first.
  void read_state(const std::string& name, const std::vector<std::string>& names, int64_t begin, int64_t count, float* out) override {
    const SavedSlot& slot = slots_.at(name);
    read_unit(slot.unit, names.front(), slot.offset + begin, count, out);
  }

  bool has_state(const std::string& name, const std::string& state) const override {
    return parameters_.at(name).trained && std::find(state_names_.begin(), state_names_.end(), state) != state_names_.end();
  }

  std::span<const std::byte> generator(int rank, const std::string& device) override {
    if (device != "cpu") return {};
    const auto& source = file(static_cast<size_t>(rank));
    const auto* entry = source.find("rng.cpu");
    if (!entry) damaged(source.path(), "tensor rng.cpu is missing");
    return source.bytes(*entry);
  }

 private:
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
  void read_unit(size_t unit, const std::string& kind, int64_t begin, int64_t count, float* out) {
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

  void read_index(const Json& index) {
    const std::string file = path_ + "/index.json";
    if (index.at("format") != kFormat) damaged(file, base::str("format: got ", index.at("format").dump(), ", allowed \"", kFormat, "\""));
    if (index.at("version") != kVersion) damaged(file, base::str("version: got ", index.at("version").dump(), ", allowed ", kVersion));
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
        const auto name = parameter.at("name").get<std::string>();
        if (!slots_.emplace(name, slot).second) damaged(file, base::str("parameter ", name, " twice"));
        parameters_[name] = {slot.shape, saved.trained};
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
  std::unordered_map<std::string, SavedParameter> parameters_;
  std::string run_, client_;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Source> open_native_v1(const std::string& path) { return std::make_unique<NativeV1Source>(path); }

}  // namespace deepspeed::store
