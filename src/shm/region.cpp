#include "shm/region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::shm {
namespace {

[[noreturn]] void unusable(const char* what, size_t bytes, int reason) {
  throw Error(ErrorCode::kEnvironment, "comm", base::str("shared memory: ", what, " ", bytes, " bytes: ", std::strerror(reason)));
}

}  // namespace

int Region::create(size_t bytes) {
  const int fd = ::memfd_create("deepspeed", MFD_CLOEXEC);
  if (fd < 0) unusable("making a segment of", bytes, errno);
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int reason = errno;
    ::close(fd);
    unusable("sizing a segment of", bytes, reason);
  }
  return fd;
}

std::string Region::path_of(int fd) { return base::str("/proc/", ::getpid(), "/fd/", fd); }

Region::Region(std::shared_ptr<Domain> domain, int64_t id, int fd, size_t bytes) : domain_(domain), id_(id), fd_(fd), bytes_(bytes) {
  void* address = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (address == MAP_FAILED) {
    const int reason = errno;
    ::close(fd_);
    unusable("mapping", bytes_, reason);
  }
  // Large pages where the system allows them for shared memory; a wish only.
  ::madvise(address, bytes_, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(address);
  domain->add_region(id_, data_, bytes_);
}

Region::~Region() {
  if (const auto domain = domain_.lock()) domain->remove_region(id_);
  ::munmap(data_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

void Region::make_private() {
  if (fd_ < 0) return;
  if (const auto domain = domain_.lock()) domain->remove_region(id_);
  ::mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd_, 0);
  ::close(fd_);
  fd_ = -1;
}

}  // namespace deepspeed::shm
