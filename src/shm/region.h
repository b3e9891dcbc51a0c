// Memory that all ranks of one host map: one copy of what they share, read and written in place.
#pragma once

#include <memory>
#include <string>

#include "deepspeed/comm.h"
#include "shm/domain.h"

namespace deepspeed::shm {

// One rank's mapping of a memfd. Known to the domain while shared, so that a peer's data inside it is read in place.
class Region final : public SharedMemory {
 public:
  // Takes the descriptor. `id`: the same on all ranks. Throws Error(kEnvironment).
  Region(std::shared_ptr<Domain> domain, int64_t id, int fd, size_t bytes);
  ~Region() override;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::byte* data() const override { return data_; }
  size_t bytes() const override { return bytes_; }
  void make_private() override;

  // A new memfd of that size; its owner's peers open path_of(fd). Throws Error(kEnvironment).
  static int create(size_t bytes);
  static std::string path_of(int fd);

 private:
  std::weak_ptr<Domain> domain_;  // parameters may outlive the job
  int64_t id_;
  int fd_;
  std::byte* data_ = nullptr;
  size_t bytes_;
};

}  // namespace deepspeed::shm
