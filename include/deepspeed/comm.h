// Communication between ranks: one interface, several back ends (shared memory, Gloo, NCCL/RCCL, MPI).
//
// Every collective carries a name and meets a deadline: a dead, late or diverging peer is an Error (E2000-E2003) that names operation,
// tag, rank and group. Nothing waits forever.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace deepspeed {

// Where this process stands in the job, read from the environment of torchrun, our launcher, mpirun or srun.
struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  std::string source = "none";  // which launcher's variables were found
};

// Throws Error(kEnvironment) on half-set or contradictory variables.
RankInfo rank_info_from_environment();

// A collective in flight. wait() may be called once, from the thread that issued it.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  virtual void wait() = 0;  // returns when the result is in place; throws Error E2000-E2003
  // Whether wait() would return without waiting. False may also mean that the back end cannot tell.
  virtual bool ready() { return false; }
};

// Memory that all ranks of a group map, each at an address of its own. Zero at first. Lives as long as any rank holds it; has no name anywhere.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // From now on this rank's writes are its own. Addresses and contents stay; pages are copied when they are written.
  virtual void make_private() = 0;
};

enum class ReduceOp { kSum, kMax };

// Called with ranges [begin, end) of an output's elements as they become final, while they are still in the processor's cache. Each element comes once;
// ranges begin at multiples of kPieceElements. Calls may run on several threads at once and must not call the communicator.
using PieceReady = std::function<void(int64_t begin, int64_t end)>;
constexpr int64_t kPieceElements = 16384;

// A group of ranks. All ranks of the group must call the same operations in the same order. Tensors must be contiguous, on the group's
// device, and stay alive until the operation is done. Not thread safe: one thread drives one communicator.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  // of the group
  virtual const char* backend() const = 0;      // "shm", "gloo", "nccl", "mpi", "none" (one rank), "shm+gloo", "shm+mpi" (several hosts)
  virtual std::chrono::milliseconds timeout() const = 0;

  // tensor[n]: the sum (or maximum) over ranks, in place.
  virtual std::unique_ptr<PendingCollective> all_reduce(at::Tensor tensor, ReduceOp op, const std::string& tag) = 0;
  // output[size * n] holds input[n] of every rank in rank order. `input` may be the own slice of `output`.
  virtual std::unique_ptr<PendingCollective> all_gather(at::Tensor output, at::Tensor input, const std::string& tag) = 0;
  // output[size * n] at position r holds slice number rank() of rank r's input[size * n].
  virtual std::unique_ptr<PendingCollective> all_to_all(at::Tensor output, at::Tensor input, const std::string& tag) = 0;
  virtual std::unique_ptr<PendingCollective> broadcast(at::Tensor tensor, int root, const std::string& tag) = 0;
  // output[n] (float32): the sum over ranks, in rank order and fp32 arithmetic, of slice number rank() of input[size * n]; the same bits
  // whatever the back end's own algorithm would give.
  // `accumulate` adds to what output holds. `input` may be float32, bfloat16 or float16. `ready` (may be empty) sees the output's pieces; all
  // its calls are over when wait() returns.
  virtual std::unique_ptr<PendingCollective> reduce_scatter(at::Tensor output, at::Tensor input, const std::string& tag,
                                                            bool accumulate = false, PieceReady ready = {}) = 0;
  virtual std::unique_ptr<PendingCollective> send(at::Tensor tensor, int to, const std::string& tag) = 0;
  virtual std::unique_ptr<PendingCollective> receive(at::Tensor tensor, int from, const std::string& tag) = 0;
  virtual void barrier(const std::string& tag) = 0;

  // Memory that all ranks of the group see; writes need a collective between them and the peers' reads. nullptr on all ranks where they cannot
  // share (other back ends than shm, several hosts, or the system refuses). Collective.
  virtual std::shared_ptr<SharedMemory> share_memory(std::size_t bytes, const std::string& tag);

  // Another group of the same ranks with its own ordering, so that its operations may interleave with this one's.
  virtual std::shared_ptr<Communicator> duplicate(const std::string& name) = 0;

  // Hash over names, kinds and sizes of every collective so far. Equal on all ranks as long as they did the same; compared at each step.
  virtual uint64_t call_hash() const = 0;
  // Bytes this rank handed to collectives and number of calls so far.
  virtual uint64_t bytes_sent() const = 0;
  virtual uint64_t calls() const = 0;
};

struct CommOptions {
  // auto: nccl on accelerators; for CPU ranks shared memory ("shm") on one host, "shm+gloo" on several hosts with as many ranks each, else gloo. "mpi" and
  // "shm+mpi" use the system's MPI, where the library was built with it. DS_COMM_BACKEND stands in for auto.
  std::string backend = "auto";
  std::chrono::milliseconds timeout{0};  // 0: DEEPSPEED_TIMEOUT (minutes), else 30 minutes
  int ranks_per_host = 0;                // run_ranks_as_threads with "shm+gloo": how many threads stand for one host
};

// Joins the job described by the environment (or `info`) and returns its world group. World size 1 needs no network.
std::shared_ptr<Communicator> init_distributed(const CommOptions& options = {});
std::shared_ptr<Communicator> init_distributed(const RankInfo& info, const CommOptions& options);

// Runs `body` on `world_size` threads, each a rank of one in-process group, and rethrows the first error. For tests and small tools.
void run_ranks_as_threads(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body, const CommOptions& options = {});

}  // namespace deepspeed
