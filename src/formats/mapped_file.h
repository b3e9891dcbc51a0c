// A whole file as read-only memory.
//
// The pages are shared with every other process that maps the file. Nobody may shorten the file while it is mapped: touching a page that is
// gone ends the process (SIGBUS). Safe to read from any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace deepspeed::formats {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error(kFile) naming path and reason. An empty file is allowed.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  // Valid while this object lives; moving the object keeps it valid.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace deepspeed::formats
