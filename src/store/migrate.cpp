#include "store/migrate.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/text.h"
#include "deepspeed/error.h"
#include "store/index.h"
#include "store/save_folder.h"
#include "store/shard_file.h"

namespace deepspeed::store {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return base::str("[", base::join(extents, ", "), "]");
}

class Migration {
 public:
  Migration(Source& source, const MigrateOptions& options) : source_(source), options_(options) {
    add_parameters();
    add_buffers();
    add_generators();
  }

  Migrated summary(const std::string& directory, const std::string& tag) const {
    return {directory + "/" + tag, index_.parameters.size(), plans_.size(), total_};
  }

  Index write(FileSystem& files, const std::string& folder, const std::string& tag) {
    index_.tag = tag;
    index_.world_size = std::max(source_.world_size(), 1);
    index_.state_names = source_.state_names();
    index_.run_json = source_.run_json();
    index_.client_json = source_.client_json();
    index_.library_version = DEEPSPEED_VERSION;
    done_ = 0;
    for (size_t f = 0; f < plans_.size(); ++f) {
      const ShardPlan& plan = plans_[f];
      auto entry = write_shard(files, folder, shard_name(static_cast<int>(f), static_cast<int>(plans_.size())), index_.parameters, plan,
                               [&](size_t i) { return advance(data_of(plan, i)); });
      add_shard(index_, std::move(entry), plan);
    }
    return index_;
  }

  void compare(Source& written) {
    done_ = 0;
    for (const ShardPlan& plan : plans_) {
      for (size_t i = 0; i < plan.pieces.size(); ++i) {
        const auto bytes = data_of(plan, i);
        const std::vector<std::byte> expected(bytes.begin(), bytes.end());
        const Piece& piece = plan.pieces[i];
        const ParameterEntry& parameter = index_.parameters[piece.parameter];
        if (!std::ranges::equal(expected, read(written, parameter, piece))) {
          throw Error(ErrorCode::kCheckpointWrite, "checkpoint",
                      base::str("migrate: ", piece.kind, " of ", parameter.name, " reads back differently; the source is as it was"));
        }
        advance(expected);
      }
    }
  }

 private:
  void add_parameters() {
    // By name: the order of an unordered map is nobody's.
    const std::map<std::string, SavedParameter> sorted(source_.parameters().begin(), source_.parameters().end());
    for (const auto& [name, saved] : sorted) {
      const size_t at = index_.parameters.size();
      index_.parameters.push_back({name, saved.shape, saved.trained ? Role::kTrained : Role::kFrozen});
      const int64_t elements = index_.parameters.back().elements();
      add_piece({at, kValue, 0, elements, formats::Dtype::kF32, 0, 0});
      if (!saved.trained) continue;
      for (const auto& state : source_.state_names()) {
        if (source_.has_state(name, state)) add_piece({at, state, 0, elements, formats::Dtype::kF32, 0, 0});
      }
    }
  }

  void add_buffers() {
    for (const auto& [name, buffer] : source_.buffers()) {
      const size_t at = index_.parameters.size();
      index_.parameters.push_back({name, buffer.shape, Role::kBuffer});
      add_piece({at, kValue, 0, index_.parameters.back().elements(), buffer.dtype, 0, 0});
    }
  }

  void add_generators() {
    for (int rank = 0; rank < source_.world_size(); ++rank) {
      for (const char* device : {"cpu", "cuda"}) {
        const auto state = source_.generator(rank, device);
        if (state.empty()) continue;
        room_for(state.size()).generators.push_back({rank, device, 0, 0, state.size()});
      }
    }
  }

  void add_piece(Piece piece) {
    if (piece.count > 0) room_for(piece.bytes()).pieces.push_back(std::move(piece));
  }

  ShardPlan& room_for(uint64_t bytes) {
    if (plans_.empty() || (in_file_ > 0 && in_file_ + bytes > options_.max_file_bytes)) {
      plans_.emplace_back();
      in_file_ = 0;
    }
    in_file_ += bytes;
    total_ += bytes;
    return plans_.back();
  }

  std::span<const std::byte> data_of(const ShardPlan& plan, size_t i) {
    if (i >= plan.pieces.size()) {
      const auto& generator = plan.generators[i - plan.pieces.size()];
      return source_.generator(generator.rank, generator.device);
    }
    return read(source_, index_.parameters[plan.pieces[i].parameter], plan.pieces[i]);
  }

  std::span<const std::byte> read(Source& source, const ParameterEntry& parameter, const Piece& piece) {
    if (parameter.role == Role::kBuffer) {
      bytes_ = source.read_buffer(parameter.name);
      if (bytes_.size() != piece.bytes()) {
        throw Error(ErrorCode::kCheckpointDamaged, "checkpoint",
                    base::str("migrate: buffer ", parameter.name, " ", shape_text(parameter.shape), ": got ", bytes_.size(),
                              " bytes, allowed ", piece.bytes()));
      }
      return bytes_;
    }
    values_.resize(static_cast<size_t>(piece.count));
    if (piece.kind == kValue) {
      source.read_values(parameter.name, piece.begin, piece.count, values_.data());
    } else {
      source.read_state(parameter.name, {piece.kind}, piece.begin, piece.count, values_.data());
    }
    return std::as_bytes(std::span(values_));
  }

  std::span<const std::byte> advance(std::span<const std::byte> bytes) {
    done_ += bytes.size();
    if (options_.progress) options_.progress(done_, total_);
    return bytes;
  }

  Source& source_;
  const MigrateOptions& options_;
  Index index_;
  std::vector<ShardPlan> plans_;  // by file
  uint64_t in_file_ = 0, total_ = 0, done_ = 0;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

}  // namespace

Migrated plan_migration(Source& source, const std::string& directory, const std::string& tag, const MigrateOptions& options) {
  check_tag(tag);
  return Migration(source, options).summary(directory, tag);
}

Migrated migrate(FileSystem& files, Source& source, const std::string& directory, const std::string& tag, const MigrateOptions& options) {
  check_tag(tag);
  if (files.exists(directory + "/" + tag)) {
    throw Error(ErrorCode::kUsage, "checkpoint", base::str("migrate: got ", directory, "/", tag, ", which exists, allowed a new name"));
  }
  Migration migration(source, options);
  SaveFolder folder(files, directory, tag);
  folder.commit(migration.write(files, folder.temporary(), tag));
  migration.compare(*open_native(files, directory + "/" + tag));
  return migration.summary(directory, tag);
}

}  // namespace deepspeed::store
