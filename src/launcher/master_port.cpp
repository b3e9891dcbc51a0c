#include "launcher/master_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::launcher {
namespace {

constexpr int kDefaultPort = 29500;
constexpr int kPortsTried = 500;  // stays below the range of outgoing connections

bool can_bind(const sockaddr* address, socklen_t size, int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;  // this family is not there, so nobody listens on it
  const int on = 1;
  // As servers do it: a port whose last connections still wait for stray packets counts as free.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  const bool in_use = bind(fd, address, size) != 0 && errno != EADDRNOTAVAIL;
  close(fd);
  return !in_use;
}

bool is_free(int port) {
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(static_cast<uint16_t>(port));
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = four.sin_port;
  return can_bind(reinterpret_cast<sockaddr*>(&four), sizeof four, AF_INET) &&
         can_bind(reinterpret_cast<sockaddr*>(&six), sizeof six, AF_INET6);
}

// The socket that reserves `port` among launchers, or -1 when another launcher has it.
int reserve(int port) {
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const std::string name = base::str("deepspeed-master-port-", port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading zero byte makes the name abstract: no file
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0)
    return fd;
  close(fd);
  return -1;
}

}  // namespace

MasterPort MasterPort::choose(std::optional<int> wanted) {
  if (wanted) {
    if (!is_free(*wanted)) {
      throw Error(
          ErrorCode::kEnvironment, "launcher",
          base::str("master port: got ", *wanted, ", which is in use or not permitted, allowed a free port (parameter --master_port)"));
    }
    return MasterPort(*wanted, reserve(*wanted));
  }
  for (int port = kDefaultPort; port < kDefaultPort + kPortsTried; ++port) {
    const int lock = reserve(port);
    if (lock < 0) continue;
    if (is_free(port)) return MasterPort(port, lock);
    close(lock);
  }
  throw Error(ErrorCode::kEnvironment, "launcher",
              base::str("master port: got no free port from ", kDefaultPort, " to ", kDefaultPort + kPortsTried - 1,
                        ", allowed any free port (parameter --master_port)"));
}

MasterPort::~MasterPort() {
  if (lock_ >= 0) close(lock_);
}

}  // namespace deepspeed::launcher
