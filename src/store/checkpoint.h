// A checkpoint that is open for reading. Everything handed out has been compared with its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "store/file_system.h"
#include "store/index.h"

namespace deepspeed::store {

class Checkpoint {
 public:
  // Reads and verifies CHECKSUMS and index, and the sizes of all files, without their data. Throws Error(kCheckpointMissing) when there is no such folder or
  // nothing of ours in it, Error(kCheckpointDamaged) naming the file.
  Checkpoint(FileSystem& files, std::string path);

  const std::string& path() const { return path_; }
  const Index& index() const { return index_; }
  int64_t global_steps() const;  // -1: not among the run's values
  // Sorted by their begin.
  std::span<const Piece> pieces(size_t parameter, const std::string& kind) const;

  // Bytes [offset, offset + count) of a file, verified. Throws Error(kCheckpointDamaged) naming file, `what` and the first damaged byte range. Valid while the
  // object lives.
  std::span<const std::byte> bytes(size_t file, uint64_t offset, uint64_t count, const std::string& what);
  std::span<const std::byte> bytes(const Piece& piece);
  // Compares every chunk of one file; adds a line for each that differs, with the tensors that lie in it.
  void verify_file(size_t file, std::vector<std::string>& problems);

 private:
  struct Open {
    std::unique_ptr<const FileView> view;
    std::vector<bool> verified;  // by chunk
  };
  Open& open(size_t file);
  bool chunk_matches(size_t file, uint64_t chunk);
  std::string tensors_in(size_t file, uint64_t begin, uint64_t end) const;

  FileSystem& files_;
  std::string path_;
  Index index_;
  std::vector<Open> open_;
};

}  // namespace deepspeed::store
