// The calls of one group of ranks of a host: each is described in the segment at once and carried out when its peers have described theirs too, in the
// order of the calls, while this rank waits for it or for any other call of any group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "shm/domain.h"

namespace deepspeed::shm {

// One rank's side. Driven by one thread. All ranks of the domain make their groups in one order.
class Group {
 public:
  // Carried out when all ranks have described the call: copies what this rank needs out of its peers' memory.
  using Take = std::function<void()>;

  Group(std::string name, std::shared_ptr<Domain> domain);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return domain_->rank(); }
  int size() const { return domain_->size(); }
  const std::string& name() const { return name_; }
  const std::shared_ptr<Domain>& domain() const { return domain_; }

  // Number that the next call will have; from 1.
  uint64_t next() const { return number_ + 1; }
  // Describes call next(): `hash` (over operations, tags and sizes so far) must be equal on all ranks, else progress() throws kCommMismatch;
  // data[bytes] is what peers read: it stays unchanged until everyone_done(number), unless it lies in the descriptor (up to kInlineBytes). `after`: a call
  // that every rank must be done with before `take`; 0: none.
  uint64_t describe(const std::string& what, uint64_t hash, const void* data, size_t bytes, Take take, uint64_t after = 0);

  // Carries out what can be. Returns whether anything was.
  bool progress();
  bool done(uint64_t number) const;  // by this rank: it has what it needs
  bool everyone_done(uint64_t number) const;
  // Until this rank is done with the call, or until all are. Throws Error kPeerDied, kCommTimeout, kCommMismatch, beginning with `what`.
  void wait_own(uint64_t number, const std::string& what);
  void wait_all(uint64_t number, const std::string& what);

  // For takes. Where a peer's data of a call can be read in place; nullptr: it has to be copied out of that process.
  const std::byte* peer_data(int rank, uint64_t number) const;
  void read_peer(int rank, uint64_t number, void* out, size_t offset, size_t bytes) const;

 private:
  struct Call {
    uint64_t number = 0;
    std::string what;
    Take take;
    uint64_t after = 0;
  };

  const Descriptor& peer_descriptor(int rank, uint64_t number) const;
  void compare(const Call& call) const;

  std::string name_;
  std::shared_ptr<Domain> domain_;
  int group_;
  uint64_t number_ = 0;     // calls described
  std::deque<Call> queue_;  // described, not yet carried out
};

}  // namespace deepspeed::shm
