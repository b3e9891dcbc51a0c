#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw Error(ErrorCode::kFile, "formats", base::str(what, " ", path, ": ", std::strerror(errno)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, "opening");
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    ::close(fd);
    fail(path, "reading the size of");
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(ErrorCode::kFile, "formats", base::str("opening ", path, ": got a directory or device, allowed a regular file"));
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
      ::close(fd);
      fail(path, "mapping");
    }
    data_ = static_cast<const std::byte*>(memory);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace deepspeed::formats
