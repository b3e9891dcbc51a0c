// What a checkpoint asks of a file system, and nothing else. One implementation talks to the disk (disk()); tests put their own behind the same verbs, fail
// or tear each call in turn, and drop what was not synced.
//
// All verbs throw Error(kFile), which names path and reason.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace deepspeed::store {

// A new file that is written once, from begin to end.
class FileWriter {
 public:
  virtual ~FileWriter() = default;
  virtual void append(std::span<const std::byte> data) = 0;
  // Returns when the content has reached the disk. After a failure the file is to be given up: its pages may count as clean though they were lost, so a second
  // call proves nothing.
  virtual void sync() = 0;
  virtual void close() = 0;  // the destructor closes without a word
};

// A whole file for reading. Valid while the object lives; safe from any thread.
class FileView {
 public:
  virtual ~FileView() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

// Held while the object lives, and not a moment longer than the process.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<FileWriter> create(const std::string& path) = 0;  // an Error where the name is taken
  virtual std::unique_ptr<const FileView> open(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& folder) = 0;  // names, sorted; of a file or nothing: none
  virtual void make_directory(const std::string& path) = 0;              // that exists already: fine
  virtual void sync_directory(const std::string& path) = 0;              // makes its names durable
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Swaps two names in one step. False, with nothing changed, where the file system cannot.
  virtual bool exchange(const std::string& one, const std::string& other) = 0;
  virtual void remove(const std::string& path) = 0;  // a file or a tree; not being there is fine
  // Exclusive, without waiting; makes the file. nullptr: somebody else holds it.
  virtual std::unique_ptr<FileLock> lock(const std::string& path) = 0;
};

FileSystem& disk();

}  // namespace deepspeed::store
