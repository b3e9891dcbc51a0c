#include "base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::base {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path, const std::string& reason) {
  throw Error(ErrorCode::kFile, "file", str(what, " ", path, ": ", reason));
}

}  // namespace

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail("making folder", path, error.message());
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("reading", path, std::strerror(errno));
  std::ostringstream content;
  content << file.rdbuf();
  if (file.bad()) fail("reading", path, std::strerror(errno));
  return content.str();
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

void sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("opening folder", path, std::strerror(errno));
  const int result = ::fsync(fd);
  const int reason = errno;
  ::close(fd);
  if (result != 0) fail("syncing folder", path, std::strerror(reason));
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail("renaming", str(from, " to ", to), std::strerror(errno));
}

bool exchange_paths(const std::string& one, const std::string& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  fail("exchanging", str(one, " and ", other), std::strerror(errno));
}

void remove_tree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) fail("removing", path, error.message());
}

}  // namespace deepspeed::base
