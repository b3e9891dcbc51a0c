// Memory that all ranks of one host map: one copy of what they share, read and written in place.
#pragma once

#include <memory>
#include <string>

#include "comm/shm_domain.h"
#include "deepspeed/comm.h"

namespace deepspeed::comm {

// One rank's mapping of a memfd. Known to the domain while shared, so that a peer's data inside it is read in place.
class ShmRegion final : public SharedMemory {
 public:
  // Takes the descriptor. `id`: the same on all ranks. Throws Error(kEnvironment).
  ShmRegion(std::shared_ptr<ShmDomain> domain, int64_t id, int fd, size_t bytes);
  ~ShmRegion() override;
  ShmRegion(const ShmRegion&) = delete;
  ShmRegion& operator=(const ShmRegion&) = delete;

  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  void make_private() override;

  // A new memfd of that size; its owner's peers open path_of(fd). Throws Error(kEnvironment).
  static int create(size_t bytes);
  static std::string path_of(int fd);

 private:
  std::weak_ptr<ShmDomain> domain_;  // parameters may outlive the job
  int64_t id_;
  int fd_;
  std::byte* data_ = nullptr;
  size_t bytes_;
};

}  // namespace deepspeed::comm
