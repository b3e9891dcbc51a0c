// A Communicator between ranks of one host, over a shm::Group. CPU tensors.
//
// A call is described at once and carried out when its peers have described theirs too: while waiting for it, or for any other call of this
// process's groups. Sums are taken in rank order and fp32, so results have the bits of the other back ends' reduce_scatter.
#pragma once

#include <c10/core/ScalarType.h>

#include "comm/call_log.h"
#include "deepspeed/comm.h"
#include "shm/group.h"

namespace deepspeed::comm {

class ShmCommunicator final : public Communicator {
 public:
  ShmCommunicator(std::string name, std::shared_ptr<shm::Domain> domain, std::chrono::milliseconds timeout);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
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
  std::unique_ptr<PendingCollective> post(const char* operation, const std::string& tag, const void* data, size_t bytes,
                                          std::function<void()> take, std::vector<at::Tensor> keep_alive);
  void reduce_piece(std::byte* out, uint64_t number, size_t offset, size_t bytes, const std::byte* own, c10::ScalarType type, ReduceOp op);
  std::unique_ptr<PendingCollective> all_reduce_at_once(at::Tensor tensor, ReduceOp op, const std::string& tag);
  bool has_staging();
  std::unique_ptr<PendingCollective> all_reduce_staged(at::Tensor tensor, ReduceOp op, const std::string& tag);

  std::shared_ptr<shm::Group> group_;
  std::chrono::milliseconds timeout_;
  CallLog log_;
  std::vector<std::byte> scratch_;
  static constexpr size_t kStagingSlots = 2, kStagingBytes = 1 << 20;
  std::shared_ptr<SharedMemory> staging_;  // by rank and slot; see has_staging()
  bool staging_tried_ = false;
  uint64_t staged_ = 0;
  uint64_t staged_by_[kStagingSlots] = {};  // last call that used a slot
};

}  // namespace deepspeed::comm
