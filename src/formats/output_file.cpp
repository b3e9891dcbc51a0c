#include "formats/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

// Linux moves at most this much in one call.
constexpr size_t kLargestWrite = size_t{1} << 30;

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(ErrorCode::kFile, "formats", base::str(what, " ", path, ": ", std::strerror(errno)));
}

void sync_folder(const std::string& path) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(folder.string(), "opening");
  const int result = ::fsync(fd);
  ::close(fd);
  if (result != 0) fail(folder.string(), "syncing");
}

}  // namespace

void write_all(int fd, std::span<const std::byte> data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t written = ::write(fd, data.data(), std::min(data.size(), kLargestWrite));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(path, "writing");
    }
    data = data.subspan(static_cast<size_t>(written));
  }
}

OutputFile::OutputFile(const std::string& path) : path_(path), partial_(path + ".partial") {
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail(partial_, "creating");
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void OutputFile::write(std::span<const std::byte> data) {
  write_all(fd_, data, partial_);
  size_ += data.size();
}

void OutputFile::commit(bool durable) {
  if (durable && ::fsync(fd_) != 0) fail(partial_, "syncing");
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail(path_, "renaming to");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) fail(path_, "closing");
  if (durable) sync_folder(path_);
}

}  // namespace deepspeed::formats
