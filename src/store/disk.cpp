#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/files.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "formats/mapped_file.h"
#include "formats/output_file.h"
#include "store/file_system.h"

namespace deepspeed::store {
namespace {

// The disk is set to work on finished stretches while the next ones are still being copied, so that sync() finds little left to do.
constexpr off_t kWriteBehind = off_t{16} << 20;

[[noreturn]] void fail(const char* what, const std::string& path) {
  throw Error(ErrorCode::kFile, "file", base::str(what, " ", path, ": ", std::strerror(errno)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class DiskWriter final : public FileWriter {
 public:
  explicit DiskWriter(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (fd_.get() < 0) fail("creating", path);
  }

  void append(std::span<const std::byte> data) override {
    formats::write_all(fd_.get(), data, path_);
    written_ += static_cast<off_t>(data.size());
    if (written_ - started_ >= kWriteBehind) {
      ::sync_file_range(fd_.get(), started_, written_ - started_, SYNC_FILE_RANGE_WRITE);  // advice: sync() is what counts
      started_ = written_;
    }
  }

  void sync() override {
    if (::fsync(fd_.get()) != 0) fail("syncing", path_);
  }

  void close() override {
    if (::close(fd_.release()) != 0) fail("closing", path_);
  }

 private:
  std::string path_;
  Descriptor fd_;
  off_t written_ = 0, started_ = 0;
};

class DiskView final : public FileView {
 public:
  explicit DiskView(const std::string& path) : file_(path) {}
  std::span<const std::byte> bytes() const override { return file_.bytes(); }

 private:
  formats::MappedFile file_;
};

class DiskLock final : public FileLock {
 public:
  explicit DiskLock(int fd) : fd_(fd) {}

 private:
  Descriptor fd_;
};

class Disk final : public FileSystem {
 public:
  std::unique_ptr<FileWriter> create(const std::string& path) override { return std::make_unique<DiskWriter>(path); }
  std::unique_ptr<const FileView> open(const std::string& path) override { return std::make_unique<DiskView>(path); }
  bool exists(const std::string& path) override { return base::exists(path); }

  std::vector<std::string> list(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) return names;
    for (auto item = std::filesystem::directory_iterator(folder, error); !error && item != std::filesystem::directory_iterator();
         item.increment(error)) {
      names.push_back(item->path().filename().string());
    }
    if (error) throw Error(ErrorCode::kFile, "file", base::str("listing ", folder, ": ", error.message()));
    std::sort(names.begin(), names.end());
    return names;
  }

  void make_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return;
    const int reason = errno;
    std::error_code ignored;
    if (reason == EEXIST && std::filesystem::is_directory(path, ignored)) return;
    errno = reason;
    fail("making folder", path);
  }

  void sync_directory(const std::string& path) override { base::sync_directory(path); }
  void rename(const std::string& from, const std::string& to) override { base::rename_path(from, to); }
  bool exchange(const std::string& one, const std::string& other) override { return base::exchange_paths(one, other); }
  void remove(const std::string& path) override { base::remove_tree(path); }

  std::unique_ptr<FileLock> lock(const std::string& path) override {
    Descriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (fd.get() < 0) fail("opening", path);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return std::make_unique<DiskLock>(fd.release());
    if (errno == EWOULDBLOCK) return nullptr;
    fail("locking", path);
  }
};

}  // namespace

FileSystem& disk() {
  static Disk instance;
  return instance;
}

}  // namespace deepspeed::store
