#include "store/save_folder.h"

#include <cstring>
#include <vector>

#include "base/text.h"
#include "deepspeed/error.h"
#include "store/directory.h"

namespace deepspeed::store {
namespace {

constexpr const char* kTemporary = ".tmp.";
constexpr const char* kReplaced = ".tmp.replaced.";

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// With the folders above it, each of them durable.
void make_durable_directory(FileSystem& files, const std::string& path) {
  if (path.empty() || files.exists(path)) return;
  const std::string parent = parent_of(path);
  if (parent != path) make_durable_directory(files, parent);
  files.make_directory(path);
  files.sync_directory(parent);
}

}  // namespace

void check_tag(const std::string& tag) {
  const bool plain = !tag.empty() && tag.size() < 200 && tag[0] != '.' && tag.find('/') == std::string::npos &&
                     tag.find('\0') == std::string::npos && tag.find('\n') == std::string::npos && tag != "latest";
  if (!plain) {
    throw Error(ErrorCode::kUsage, "checkpoint",
                base::str("save: got the tag \"", tag, "\", allowed a file name that neither starts with a dot nor is \"latest\""));
  }
}

std::string temporary_folder(const std::string& directory, const std::string& tag) { return directory + "/" + kTemporary + tag; }

SaveFolder::SaveFolder(FileSystem& files, std::string directory, std::string tag)
    : files_(files), directory_(std::move(directory)), tag_(std::move(tag)) {
  if (directory_.empty()) throw Error(ErrorCode::kUsage, "checkpoint", "save: got an empty directory name, allowed a path");
  check_tag(tag_);
  while (directory_.size() > 1 && directory_.back() == '/') directory_.pop_back();
  temporary_ = temporary_folder(directory_, tag_);
  make_durable_directory(files_, directory_);
  lock_ = files_.lock(directory_ + "/.lock");
  if (!lock_) {
    throw Error(ErrorCode::kCheckpointWrite, "checkpoint",
                base::str("save: got another save at work in ", directory_, ", allowed one at a time; give each run a folder of its own"));
  }
  clear_leftovers();
  files_.make_directory(temporary_);
}

// What an interrupted save left behind gives its space back. A checkpoint that it had put aside for one of the same name, which never came, returns.
void SaveFolder::clear_leftovers() {
  for (const auto& name : files_.list(directory_)) {
    if (!name.starts_with(kTemporary)) continue;
    const std::string path = directory_ + "/" + name;
    const std::string target = name.starts_with(kReplaced) ? directory_ + "/" + name.substr(std::strlen(kReplaced)) : "";
    if (target.empty() || files_.exists(target)) {
      files_.remove(path);
    } else {
      files_.rename(path, target);
      files_.sync_directory(directory_);
    }
  }
}

SaveFolder::~SaveFolder() {
  if (committed_) return;
  try {
    files_.remove(temporary_);
  } catch (const std::exception&) {
    // The next save tries again.
  }
}

void SaveFolder::write_synced(const std::string& path, std::span<const std::byte> bytes) {
  auto file = files_.create(path);
  file->append(bytes);
  file->sync();
  file->close();
}

// Ranks of other hosts may have written to a disk of their own.
void SaveFolder::check_files(const Index& index) {
  for (const auto& file : index.files) {
    const std::string path = temporary_ + "/" + file.name;
    const uint64_t bytes = files_.exists(path) ? files_.open(path)->bytes().size() : 0;
    if (bytes != file.bytes) {
      throw Error(ErrorCode::kCheckpointWrite, "checkpoint",
                  base::str(path, ": got ", bytes, " bytes, allowed ", file.bytes, "; do all ranks see the same folder?"));
    }
  }
}

std::string SaveFolder::put_in_place() {
  const std::string target = directory_ + "/" + tag_;
  // A checkpoint of this name goes out and the new one comes in as one step, so that `latest` never names nothing. Where the file system cannot do
  // that, the old one is moved aside first.
  std::string replaced = temporary_;
  if (!files_.exists(target)) {
    files_.rename(temporary_, target);
  } else if (!files_.exchange(temporary_, target)) {
    replaced = directory_ + "/" + kReplaced + tag_;
    files_.rename(target, replaced);
    files_.rename(temporary_, target);
  }
  committed_ = true;
  files_.sync_directory(directory_);
  return replaced;
}

void SaveFolder::point_latest() {
  const std::string partial = temporary_folder(directory_, "latest");
  write_synced(partial, std::as_bytes(std::span(tag_)));
  files_.rename(partial, directory_ + "/latest");
  files_.sync_directory(directory_);
}

std::string SaveFolder::commit(const Index& index) {
  check_files(index);
  const auto database = write_index(index);
  write_synced(temporary_ + "/" + kIndexFile, database);
  const std::string checksums = checksums_text(index, hash_of(database));
  write_synced(temporary_ + "/" + kChecksumsFile, std::as_bytes(std::span(checksums)));
  files_.sync_directory(temporary_);
  const std::string replaced = put_in_place();
  const std::string target = directory_ + "/" + tag_;
  try {
    point_latest();
    files_.remove(replaced);
  } catch (const Error& error) {
    throw Error(error.code(), "checkpoint",
                base::str(target, " is in place, but ", directory_, "/latest may name an older one: ", error.what()));
  }
  return target;
}

void SaveFolder::keep_newest(int keep) { prune(files_, directory_, keep); }

}  // namespace deepspeed::store
