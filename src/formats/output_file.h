// Writing a file that appears under its name only when it is complete.
//
//   OutputFile out(path);      // writes path + ".partial"
//   out.write(...);
//   out.commit(true);          // fsync, rename, fsync of the folder
//
// An object destroyed before commit() removes what it wrote. Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace deepspeed::formats {

class OutputFile {
 public:
  // Throws Error(kFile), as do the other calls.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> data);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  uint64_t size() const { return size_; }
  int fd() const { return fd_; }
  // `durable`: the content has reached the disk when the call returns, and the name has, too.
  void commit(bool durable);

 private:
  std::string path_;
  std::string partial_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Writes all of `data` to `fd`; `path` is for the message. Throws Error(kFile).
void write_all(int fd, std::span<const std::byte> data, const std::string& path);

}  // namespace deepspeed::formats
