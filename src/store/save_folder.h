// The making of a checkpoint's folder, so that a crash at any moment leaves older checkpoints whole.
//
//   SaveFolder folder(files, "runs/a", "global_step20");   // locks, clears what a dead save left, makes runs/a/.tmp.global_step20
//   ... every rank writes and syncs its file there ...
//   folder.commit(index);                                   // index, CHECKSUMS, syncs, rename, `latest`
//
// Rank 0 alone holds one. Destroyed without commit() it removes what was written.
#pragma once

#include <memory>
#include <string>

#include "store/file_system.h"
#include "store/index.h"

namespace deepspeed::store {

// Throws Error(kUsage) unless `tag` can name a checkpoint.
void check_tag(const std::string& tag);
// Where the files of a save lie until it is committed.
std::string temporary_folder(const std::string& directory, const std::string& tag);

class SaveFolder {
 public:
  // Throws Error(kFile), or Error(kCheckpointWrite) when another save works on `directory`.
  SaveFolder(FileSystem& files, std::string directory, std::string tag);
  ~SaveFolder();
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;

  const std::string& temporary() const { return temporary_; }
  // Returns DIR/TAG. Throws Error(kFile) or Error(kCheckpointWrite); before the rename nothing of older checkpoints has changed then, after it (the message
  // says so) the new one is in place.
  std::string commit(const Index& index);
  // Removes all but the newest `keep` checkpoints of this format. After commit().
  void keep_newest(int keep);

 private:
  void clear_leftovers();
  void write_synced(const std::string& path, std::span<const std::byte> bytes);
  void check_files(const Index& index);
  std::string put_in_place();
  void point_latest();

  FileSystem& files_;
  std::string directory_, tag_, temporary_;
  std::unique_ptr<FileLock> lock_;
  bool committed_ = false;
};

}  // namespace deepspeed::store
