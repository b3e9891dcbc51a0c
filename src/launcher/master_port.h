// The port on which rank 0 will listen for the others.
#pragma once

#include <optional>

namespace deepspeed::launcher {

// A port that was free when looked at, kept from other launchers on this host for this object's lifetime.
//
// The port itself cannot be held, as rank 0 has to bind it. So launchers keep off each other's choice by an abstract socket named after
// the port, which the kernel releases however the launcher ends.
class MasterPort {
 public:
  // `wanted`: the user's own choice; Error(kEnvironment) if it is in use. Without it: 29500, else the next free one.
  static MasterPort choose(std::optional<int> wanted);
  // For a world of one rank, which needs no port.
  static MasterPort unchecked(int port) { return MasterPort(port, -1); }

  ~MasterPort();
  MasterPort(MasterPort&& other) noexcept : port_(other.port_), lock_(other.lock_) { other.lock_ = -1; }
  MasterPort& operator=(MasterPort&&) = delete;

  int port() const { return port_; }

 private:
  MasterPort(int port, int lock) : port_(port), lock_(lock) {}

  int port_;
  int lock_;  // file descriptor
};

}  // namespace deepspeed::launcher
