// A Communicator between ranks of one host, over a ShmDomain. CPU tensors.
//
// A call is described at once and carried out when its peers have described theirs too: while waiting for it, or for any other call of this
// process's groups. Sums are taken in rank order and fp32, so results have the bits of the other back ends' reduce_scatter.
#pragma once

#include <c10/core/ScalarType.h>

#include <deque>

#include "comm/call_log.h"
#include "comm/shm_domain.h"
#include "deepspeed/comm.h"

namespace deepspeed::comm {

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(std::string name, std::shared_ptr<ShmDomain> domain, std::chrono::milliseconds timeout);
  ~ShmCommunicator() override;

  int rank() const override { return domain_->rank(); }
  int size() const override { return domain_->size(); }
  const std::string& name() const override { return name_; }
  const char* backend() const override { return "shm"; }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  std::unique_ptr<PendingCollective> all_reduce(at::Tensor tensor, ReduceOp op, const std::string& tag) override;
  std::unique_ptr<PendingCollective> all_gather(at::Tensor output, at::Tensor input, const std::string& tag) override;
  std::unique_ptr<PendingCollective> all_to_all(at::Tensor output, at::Tensor input, const std::string& tag) override;
  std::unique_ptr<PendingCollective> broadcast(at::Tensor tensor, int root, const std::string& tag) override;
  std::unique_ptr<PendingCollective> reduce_scatter(at::Tensor output, at::Tensor input, const std::string& tag, bool accumulate,
                                                    PieceReady ready) override;
  std::unique_ptr<PendingCollective> send(at::Tensor tensor, int to, const std::string& tag) override;
  std::unique_ptr<PendingCollective> receive(at::Tensor tensor, int from, const std::string& tag) override;
  void barrier(const std::string& tag) override;
  std::shared_ptr<SharedMemory> share_memory(size_t bytes, const std::string& tag) override;
  std::shared_ptr<Communicator> duplicate(const std::string& name) override;

  uint64_t call_hash() const override { return log_.hash(); }
  uint64_t bytes_sent() const override { return log_.bytes(); }
  uint64_t calls() const override { return log_.calls(); }

 private:
  friend class ShmPending;
  // A call that this rank has described. `take` copies what this rank needs from its peers' memory; all have described the call then.
  struct Call {
    uint64_t number = 0;  // from 1
    std::string what;
    std::function<void()> take;
    uint64_t after = 0;  // a call that every rank must be done with before `take`; 0: none
  };

  // Describes call number number_ + 1.
  void describe(const std::string& what, const void* data, size_t bytes, std::function<void()> take, uint64_t after);
  std::unique_ptr<PendingCollective> post(const char* operation, const std::string& tag, const void* data, size_t bytes,
                                          std::function<void()> take, std::vector<at::Tensor> keep_alive);
  const Descriptor& peer_descriptor(int rank, uint64_t number) const;
  // Where a peer's data of a call can be read in place; nullptr: it has to be copied out of that process.
  const std::byte* peer_data(int rank, uint64_t number) const;
  void read_peer(int rank, uint64_t number, void* out, size_t offset, size_t bytes) const;
  void reduce_piece(std::byte* out, uint64_t number, size_t offset, size_t bytes, const std::byte* own, c10::ScalarType type, ReduceOp op);
  std::unique_ptr<PendingCollective> all_reduce_at_once(at::Tensor tensor, ReduceOp op, const std::string& tag);
  bool progress();
  void compare(const Call& call) const;
  bool done(uint64_t number) const;  // by this rank
  bool everyone_done(uint64_t number) const;
  bool has_staging();
  std::unique_ptr<PendingCollective> all_reduce_staged(at::Tensor tensor, ReduceOp op, const std::string& tag);

  std::string name_;
  std::shared_ptr<ShmDomain> domain_;
  std::chrono::milliseconds timeout_;
  int group_;
  CallLog log_;
  uint64_t number_ = 0;     // calls described
  std::deque<Call> queue_;  // described, not yet carried out
  std::vector<std::byte> scratch_;
  static constexpr size_t kStagingSlots = 2, kStagingBytes = 1 << 20;
  std::shared_ptr<SharedMemory> staging_;  // by rank and slot; see has_staging()
  bool staging_tried_ = false;
  uint64_t staged_ = 0;
  uint64_t staged_by_[kStagingSlots] = {};  // last call that used a slot
};

}  // namespace deepspeed::comm
