// A Communicator over a c10d back end (Gloo, NCCL/RCCL).
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/call_log.h"
#include "deepspeed/comm.h"

namespace deepspeed::comm {

// Makes a c10d back end for one more group of the same ranks. `store` is already prefixed for that group.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                                       std::chrono::milliseconds timeout)>;

// Owns the back end. Failures publish this rank's position in the store and read the others', so that the error can say who did what.
class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(std::string name, const char* backend_name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   std::chrono::milliseconds timeout, BackendFactory factory);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }
  const char* backend() const override { return backend_name_; }
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
  std::shared_ptr<Communicator> duplicate(const std::string& name) override;

  uint64_t call_hash() const override { return log_.hash(); }
  uint64_t bytes_sent() const override { return log_.bytes(); }
  uint64_t calls() const override { return log_.calls(); }

  // Turns whatever `call` throws into an Error that names the operation, this rank, the group and what the other ranks reported.
  void guarded(const std::string& what, const std::function<void()>& call);

 private:
  std::unique_ptr<PendingCollective> start(const char* operation, const std::string& tag, uint64_t bytes,
                                           const std::function<c10::intrusive_ptr<c10d::Work>()>& issue, std::vector<at::Tensor> keep_alive,
                                           std::function<void()> finish = {});
  [[noreturn]] void fail(const std::string& what, const std::string& cause);
  std::string reports_of_others(const std::string& what);

  std::string name_;
  const char* backend_name_;
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::chrono::milliseconds timeout_;
  BackendFactory factory_;
  c10::intrusive_ptr<c10d::Backend> backend_;  // null when size is 1
  CallLog log_;
  int duplicates_ = 0;  // groups made of this one
};

}  // namespace deepspeed::comm
