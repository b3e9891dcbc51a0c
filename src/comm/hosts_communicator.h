// A group over several hosts, each with as many ranks: what can be done inside a host goes through its shared memory, and only one copy of each
// result crosses the network.
//
//   all_reduce      sum inside each host -> each local rank exchanges its slice with its peers on the other hosts -> slices to all inside
//   reduce_scatter  sum inside each host -> sum over hosts          all_gather  from the same local rank of each host -> inside
//   broadcast       root's host to the others -> inside             all_to_all  inside, by local rank of the target -> between hosts
//
// Sums are taken in rank order inside a host and then in host order, in fp32: the same bits on every run and rank, but not those of one flat group.
// The parts of a call run on three groups (inside before, between, inside after), each in the order of the calls, whenever they are waited for: ranks
// may wait in different orders.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/call_log.h"
#include "deepspeed/comm.h"
#include "shm/domain.h"

namespace deepspeed::comm {

// Global rank = host * (ranks of a host) + local rank. CPU tensors.
class HostsCommunicator final : public Communicator, public std::enable_shared_from_this<HostsCommunicator> {
 public:
  struct Parts {
    std::shared_ptr<Communicator> first, last;  // ranks of this host
    std::shared_ptr<Communicator> across;       // this local rank of every host
    std::shared_ptr<Communicator> flat;         // all ranks, for send and receive
    std::shared_ptr<shm::Domain> domain;        // of this host's ranks
  };

  HostsCommunicator(std::string name, Parts parts);
  ~HostsCommunicator() override;

  int rank() const override { return across_->rank() * locals() + first_->rank(); }
  int size() const override { return hosts() * locals(); }
  const std::string& name() const override { return name_; }
  const char* backend() const override { return backend_.c_str(); }
  std::chrono::milliseconds timeout() const override { return across_->timeout(); }

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

 private:
  friend class HostsPending;
  // Where a part of a call runs; each group sees the parts in the order of the calls.
  enum class On { kFirst, kAcross, kLast };
  struct Part {
    On on;
    std::function<std::vector<std::unique_ptr<PendingCollective>>()> start;  // returns what to wait for
  };
  struct Call {
    std::string what;
    std::deque<Part> parts;                                     // not yet started
    std::vector<std::unique_ptr<PendingCollective>> under_way;  // of the part started last
    bool over() const { return parts.empty() && under_way.empty(); }
  };

  int hosts() const { return across_->size(); }
  int locals() const { return first_->size(); }
  std::unique_ptr<PendingCollective> start(const char* operation, const std::string& tag, uint64_t bytes, std::deque<Part> parts);
  // Whether the next part of call number `index` of calls_ has none before it on its group.
  bool may_start(size_t index) const;
  // Goes on with what can go on without waiting; whether anything did.
  bool advance();
  void finish(const std::shared_ptr<Call>& call);

  std::string name_, backend_;
  std::shared_ptr<Communicator> first_, last_, across_, flat_;
  std::shared_ptr<shm::Domain> domain_;
  bool advancing_ = false;
  bool broken_ = false;  // a call failed: later ones fail at once
  CallLog log_;
  std::deque<std::shared_ptr<Call>> calls_;  // not over, in order
};

}  // namespace deepspeed::comm
