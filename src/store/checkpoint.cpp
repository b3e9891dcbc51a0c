#include "store/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::store {
namespace {

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kCheckpointDamaged, "checkpoint", base::str(path, ": ", what));
}

// Sizes of all files, and that no shard of another save lies among them.
void check_folder(FileSystem& files, const std::string& path, const Index& index) {
  std::set<std::string> known;
  for (const auto& file : index.files) {
    known.insert(file.name);
    const std::string name = path + "/" + file.name;
    if (!files.exists(name)) damaged(name, "missing");
    const uint64_t bytes = files.open(name)->bytes().size();
    if (bytes != file.bytes) damaged(name, base::str("got ", bytes, " bytes, allowed ", file.bytes));
  }
  for (const auto& name : files.list(path)) {
    if (name.ends_with(".safetensors") && !known.count(name)) damaged(path + "/" + name, "not a file of this checkpoint");
  }
}

}  // namespace

Checkpoint::Checkpoint(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {
  const std::string index_path = path_ + "/" + kIndexFile, checksums_path = path_ + "/" + kChecksumsFile;
  const bool has_index = files_.exists(index_path), has_checksums = files_.exists(checksums_path);
  if (!has_index && !has_checksums) {
    throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
                base::str("load: got no ", index_path, ", allowed a folder written by save_checkpoint"));
  }
  if (!has_index) damaged(index_path, "missing");
  if (!has_checksums) damaged(checksums_path, "missing");
  const auto database = files_.open(index_path);
  const auto checksums = files_.open(checksums_path);
  const auto hash = hash_of(database->bytes());
  const std::string text(reinterpret_cast<const char*>(checksums->bytes().data()), checksums->bytes().size());
  // The index's own line comes first: only an index that has this hash is looked into.
  const std::string first = hex_of(hash) + "  " + kIndexFile + "\n";
  if (text.rfind(first, 0) != 0)
    damaged(index_path, base::str("its hash is not the one that ", kChecksumsFile, " has; one of the two is damaged"));
  index_ = read_index(database->bytes(), index_path);
  if (text != checksums_text(index_, hash)) damaged(checksums_path, "differs from the index");
  check_folder(files_, path_, index_);
  open_.resize(index_.files.size());
}

int64_t Checkpoint::global_steps() const {
  const auto run = nlohmann::json::parse(index_.run_json, nullptr, false);
  const auto steps = run.is_object() ? run.find("global_steps") : run.end();
  return run.is_object() && steps != run.end() && steps->is_number_integer() ? steps->get<int64_t>() : -1;
}

std::span<const Piece> Checkpoint::pieces(size_t parameter, const std::string& kind) const {
  const auto less = [](const Piece& piece, const auto& key) { return std::tie(piece.parameter, piece.kind) < key; };
  const auto more = [](const auto& key, const Piece& piece) { return key < std::tie(piece.parameter, piece.kind); };
  const auto key = std::tie(parameter, kind);
  const auto begin = std::lower_bound(index_.pieces.begin(), index_.pieces.end(), key, less);
  return {begin, std::upper_bound(begin, index_.pieces.end(), key, more)};
}

Checkpoint::Open& Checkpoint::open(size_t file) {
  Open& opened = open_.at(file);
  if (!opened.view) {
    opened.view = files_.open(path_ + "/" + index_.files[file].name);
    if (opened.view->bytes().size() != index_.files[file].bytes) damaged(path_ + "/" + index_.files[file].name, "its size has changed");
    opened.verified.resize(index_.files[file].chunks.size(), false);
  }
  return opened;
}

bool Checkpoint::chunk_matches(size_t file, uint64_t chunk) {
  Open& opened = open(file);
  if (opened.verified[chunk]) return true;
  const auto all = opened.view->bytes();
  const uint64_t begin = chunk * kChunkBytes;
  opened.verified[chunk] =
      crc32c(all.subspan(begin, std::min<uint64_t>(kChunkBytes, all.size() - begin))) == index_.files[file].chunks[chunk];
  return opened.verified[chunk];
}

std::span<const std::byte> Checkpoint::bytes(size_t file, uint64_t offset, uint64_t count, const std::string& what) {
  Open& opened = open(file);
  for (uint64_t chunk = offset / kChunkBytes; count > 0 && chunk <= (offset + count - 1) / kChunkBytes; ++chunk) {
    if (!chunk_matches(file, chunk)) {
      damaged(path_ + "/" + index_.files[file].name,
              base::str("bytes ", chunk * kChunkBytes, " to ", std::min(index_.files[file].bytes, (chunk + 1) * kChunkBytes),
                        " differ from their checksum (", what, ")"));
    }
  }
  return opened.view->bytes().subspan(offset, count);
}

std::span<const std::byte> Checkpoint::bytes(const Piece& piece) {
  return bytes(piece.file, piece.offset, piece.bytes(), piece.kind + " of " + index_.parameters[piece.parameter].name);
}

std::string Checkpoint::tensors_in(size_t file, uint64_t begin, uint64_t end) const {
  std::vector<std::string> names;
  for (const auto& piece : index_.pieces) {
    if (piece.file == file && piece.offset < end && piece.offset + piece.bytes() > begin) {
      names.push_back(piece.kind + " of " + index_.parameters[piece.parameter].name);
    }
  }
  for (const auto& generator : index_.generators) {
    if (generator.file == file && generator.offset < end && generator.offset + generator.bytes > begin) {
      names.push_back("random generator " + generator.device);
    }
  }
  constexpr size_t kShown = 3;
  const size_t more = names.size() > kShown ? names.size() - kShown : 0;
  names.resize(names.size() - more);
  return names.empty() ? "its header" : base::join(names, ", ") + (more ? base::str(" and ", more, " more") : "");
}

void Checkpoint::verify_file(size_t file, std::vector<std::string>& problems) {
  const auto& entry = index_.files[file];
  for (uint64_t chunk = 0; chunk < entry.chunks.size(); ++chunk) {
    if (chunk_matches(file, chunk)) continue;
    const uint64_t begin = chunk * kChunkBytes, end = std::min(entry.bytes, begin + kChunkBytes);
    problems.push_back(base::str(path_, "/", entry.name, ": bytes ", begin, " to ", end, " differ from their checksum (",
                                 tensors_in(file, begin, end), ")"));
  }
}

}  // namespace deepspeed::store
