// Checkpoints of this library: an SQLite index and a safetensors file per rank (docs/formats/checkpoint.md).
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "deepspeed/error.h"
#include "kernels/cast.h"
#include "store/checkpoint.h"
#include "store/source.h"

namespace deepspeed::store {
namespace {

DataType data_type_of(const Checkpoint& checkpoint, const Piece& piece) {
  switch (piece.dtype) {
    case formats::Dtype::kF32:
      return DataType::kFloat32;
    case formats::Dtype::kBF16:
      return DataType::kBFloat16;
    case formats::Dtype::kF16:
      return DataType::kFloat16;
    default:
      throw Error(ErrorCode::kCheckpointDamaged, "checkpoint",
                  base::str(checkpoint.path(), ": ", piece.kind, " of ", checkpoint.index().parameters[piece.parameter].name, ": got ",
                            formats::dtype_name(piece.dtype), ", allowed F32, BF16, F16"));
  }
}

class NativeSource final : public Source {
 public:
  NativeSource(FileSystem& files, const std::string& path) : checkpoint_(files, path) {
    const Index& index = checkpoint_.index();
    for (size_t i = 0; i < index.parameters.size(); ++i) {
      const ParameterEntry& entry = index.parameters[i];
      position_[entry.name] = i;
      if (entry.role != Role::kBuffer) {
        parameters_[entry.name] = {entry.shape, entry.role == Role::kTrained};
        continue;
      }
      const auto pieces = checkpoint_.pieces(i, kValue);
      buffers_[entry.name] = {entry.shape, pieces.empty() ? formats::Dtype::kF32 : pieces[0].dtype};
    }
  }

  const std::unordered_map<std::string, SavedParameter>& parameters() const override { return parameters_; }
  const std::map<std::string, SavedBuffer>& buffers() const override { return buffers_; }
  const std::vector<std::string>& state_names() const override { return checkpoint_.index().state_names; }
  int world_size() const override { return checkpoint_.index().world_size; }
  std::string run_json() const override { return checkpoint_.index().run_json; }
  std::string client_json() const override { return checkpoint_.index().client_json; }

  void read_values(const std::string& name, int64_t begin, int64_t count, float* out) override {
    read(position_.at(name), kValue, begin, count, out);
  }
  void read_state(const std::string& name, const std::vector<std::string>& names, int64_t begin, int64_t count, float* out) override {
    read(position_.at(name), kind_among(name, names), begin, count, out);
  }
  bool has_state(const std::string& name, const std::string& state) const override {
    return !checkpoint_.pieces(position_.at(name), state).empty();
  }
  void verify_values(const std::string& name, int64_t begin, int64_t count) override {
    each_part(position_.at(name), kValue, begin, count, [](const Piece&, std::span<const std::byte>, int64_t) {});
  }
  void verify_state(const std::string& name, const std::vector<std::string>& names, int64_t begin, int64_t count) override {
    each_part(position_.at(name), kind_among(name, names), begin, count, [](const Piece&, std::span<const std::byte>, int64_t) {});
  }

  std::vector<std::byte> read_buffer(const std::string& name) override {
    std::vector<std::byte> all;
    for (const Piece& piece : checkpoint_.pieces(position_.at(name), kValue)) {
      const auto bytes = checkpoint_.bytes(piece);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

  std::span<const std::byte> generator(int rank, const std::string& device) override {
    for (const auto& entry : checkpoint_.index().generators) {
      if (entry.rank == rank && entry.device == device)
        return checkpoint_.bytes(entry.file, entry.offset, entry.bytes, base::str("random generator ", device));
    }
    return {};
  }

  // Headers of files, buffers, generators: what no rank reads as its own shard.
  void verify_rest(int rank, int ranks) override {
    const Index& index = checkpoint_.index();
    for (size_t i = static_cast<size_t>(rank); i < index.files.size(); i += static_cast<size_t>(ranks)) {
      checkpoint_.bytes(i, 0, index.files[i].data_begin, "its header");
    }
    for (const auto& [name, buffer] : buffers_) {
      for (const Piece& piece : checkpoint_.pieces(position_.at(name), kValue)) checkpoint_.bytes(piece);
    }
    for (const auto& entry : index.generators) {
      if (entry.rank % ranks == rank)
        checkpoint_.bytes(entry.file, entry.offset, entry.bytes, base::str("random generator ", entry.device));
    }
  }

 private:
  const std::string& kind_among(const std::string& name, const std::vector<std::string>& names) const {
    for (const auto& kind : names) {
      if (!checkpoint_.pieces(position_.at(name), kind).empty()) return kind;
    }
    throw Error(ErrorCode::kCheckpointDamaged, "checkpoint",
                base::str(checkpoint_.path(), ": ", name, " has no state ", base::join(names, ", ")));
  }

  // use(piece, bytes, elements): the parts of pieces that lie in [begin, begin + count), in order and verified.
  template <typename Use>
  void each_part(size_t parameter, const std::string& kind, int64_t begin, int64_t count, Use&& use) {
    const auto pieces = checkpoint_.pieces(parameter, kind);
    const int64_t end = begin + count;
    auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.begin + p.count <= begin; });
    for (; piece != pieces.end() && piece->begin < end; ++piece) {
      const int64_t from = std::max(begin, piece->begin), to = std::min(end, piece->begin + piece->count);
      const uint64_t width = formats::dtype_size(piece->dtype);
      const auto bytes = checkpoint_.bytes(piece->file, piece->offset + static_cast<uint64_t>(from - piece->begin) * width,
                                           static_cast<uint64_t>(to - from) * width,
                                           base::str(kind, " of ", checkpoint_.index().parameters[parameter].name));
      use(*piece, bytes, to - from);
    }
  }

  void read(size_t parameter, const std::string& kind, int64_t begin, int64_t count, float* out) {
    each_part(parameter, kind, begin, count, [&](const Piece& piece, std::span<const std::byte> bytes, int64_t elements) {
      const DataType type = data_type_of(checkpoint_, piece);
      if (type == DataType::kFloat32) {
        std::memcpy(out, bytes.data(), bytes.size());
      } else {
        // Data in a file need not be aligned.
        scratch_.assign(bytes.begin(), bytes.end());
        kernels::cast_to_float(out, scratch_.data(), type, static_cast<size_t>(elements));
      }
      out += elements;
    });
  }

  Checkpoint checkpoint_;
  std::unordered_map<std::string, size_t> position_;  // in the index
  std::unordered_map<std::string, SavedParameter> parameters_;
  std::map<std::string, SavedBuffer> buffers_;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<Source> open_native(FileSystem& files, const std::string& path) { return std::make_unique<NativeSource>(files, path); }

}  // namespace deepspeed::store
