// libdeepspeed_mpi.so: a c10d back end on the system's MPI, for clusters whose network MPI knows best. Compiled where MPI is installed.
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/text.h"
#include "comm/c10d_communicator.h"
#include "deepspeed/error.h"

namespace deepspeed::comm {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(base::str(call, ": ", text));
}

// Started at the first group and ended with the process, unless the program itself does both.
void start_mpi() {
  static std::once_flag once;
  std::call_once(once, [] {
    int started = 0;
    check(MPI_Initialized(&started), "MPI_Initialized");
    if (started) return;
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED) {
      throw Error(ErrorCode::kEnvironment, "comm", "backend mpi: this MPI has no thread support, allowed MPI_THREAD_SERIALIZED or more");
    }
    std::atexit([] {
      int over = 0;
      if (MPI_Finalized(&over) == MPI_SUCCESS && !over) MPI_Finalize();
    });
  });
}

// A type of exactly so many bytes, as counts are 32-bit: blocks of 1 MiB and a rest.
class Bytes {
 public:
  explicit Bytes(int64_t bytes) {
    constexpr int64_t kBlock = 1 << 20;
    if (bytes <= std::numeric_limits<int>::max()) {
      count_ = static_cast<int>(bytes);
      return;
    }
    MPI_Datatype block;
    check(MPI_Type_contiguous(kBlock, MPI_BYTE, &block), "MPI_Type_contiguous");
    int lengths[] = {static_cast<int>(bytes / kBlock), static_cast<int>(bytes % kBlock)};
    MPI_Aint places[] = {0, static_cast<MPI_Aint>(bytes / kBlock * kBlock)};
    MPI_Datatype types[] = {block, MPI_BYTE};
    check(MPI_Type_create_struct(2, lengths, places, types, &type_), "MPI_Type_create_struct");
    check(MPI_Type_commit(&type_), "MPI_Type_commit");
    MPI_Type_free(&block);
    count_ = 1;
  }
  ~Bytes() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);  // MPI keeps it until the calls that use it are over
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

class MpiWork final : public c10d::Work {
 public:
  MpiWork(int rank, c10d::OpType type, std::vector<MPI_Request> requests, std::vector<at::Tensor> tensors)
      : c10d::Work(rank, type), requests_(std::move(requests)), tensors_(std::move(tensors)) {}

  bool isCompleted() override {
    if (requests_.empty()) return true;
    int over = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &over, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (!over) return false;
    requests_.clear();
    tensors_.clear();
    return true;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    const auto begin = std::chrono::steady_clock::now();
    for (int turn = 0; !isCompleted(); ++turn) {
      if (turn < 1000) continue;
      if (timeout.count() > 0 && std::chrono::steady_clock::now() - begin > timeout) {
        throw std::runtime_error(base::str("timed out after ", timeout.count(), " ms"));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(turn < 20'000 ? 0 : 50));
    }
    return true;
  }

 private:
  std::vector<MPI_Request> requests_;
  std::vector<at::Tensor> tensors_;
};

class MpiBackend final : public c10d::Backend {
 public:
  MpiBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout)
      : c10d::Backend(rank, size) {
    start_mpi();
    int world = 0, mine = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size");
    check(MPI_Comm_rank(MPI_COMM_WORLD, &mine), "MPI_Comm_rank");
    if (world < size) {
      throw Error(ErrorCode::kEnvironment, "comm",
                  base::str("backend mpi: got ", world, " ranks in MPI's world, allowed at least the group's ", size, " (rank ", rank,
                            "): start the ranks with mpirun"));
    }
    // The group's ranks by their numbers in MPI's world.
    const auto key = [](int r) { return "mpi/" + std::to_string(r); };
    const std::string text = std::to_string(mine);
    store->set(key(rank), std::vector<uint8_t>(text.begin(), text.end()));
    std::vector<int> members;
    for (int r = 0; r < size; ++r) {
      store->wait({key(r)}, timeout);
      const auto bytes = store->get(key(r));
      members.push_back(std::stoi(std::string(bytes.begin(), bytes.end())));
    }
    MPI_Group all, group;
    check(MPI_Comm_group(MPI_COMM_WORLD, &all), "MPI_Comm_group");
    check(MPI_Group_incl(all, size, members.data(), &group), "MPI_Group_incl");
    check(MPI_Comm_create_group(MPI_COMM_WORLD, group, 0, &comm_), "MPI_Comm_create_group");
    MPI_Group_free(&group);
    MPI_Group_free(&all);
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  ~MpiBackend() override {
    int over = 0;
    if (MPI_Finalized(&over) == MPI_SUCCESS && !over) MPI_Comm_free(&comm_);
  }

  const std::string getBackendName() const override { return "mpi"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    const at::Tensor& tensor = tensors.at(0);
    const MPI_Op op = options.reduceOp == c10d::ReduceOp::SUM ? MPI_SUM : MPI_MAX;
    const MPI_Datatype type = type_of(tensor.scalar_type());
    auto* data = static_cast<std::byte*>(tensor.mutable_data_ptr());
    constexpr int64_t kMost = 1 << 28;
    std::vector<MPI_Request> requests;
    for (int64_t begin = 0; begin < tensor.numel(); begin += kMost) {
      const auto count = static_cast<int>(std::min(kMost, tensor.numel() - begin));
      check(MPI_Iallreduce(MPI_IN_PLACE, data + begin * tensor.element_size(), count, type, op, comm_, &requests.emplace_back()),
            "MPI_Iallreduce");
    }
    return work(c10d::OpType::ALLREDUCE, std::move(requests), {tensor});
  }

  c10::intrusive_ptr<c10d::Work> all_gather_single(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    const Bytes slice(bytes_of(input));
    const bool in_place = input.const_data_ptr() == static_cast<std::byte*>(output.mutable_data_ptr()) + bytes_of(input) * rank_;
    MPI_Request request;
    check(MPI_Iallgather(in_place ? MPI_IN_PLACE : input.const_data_ptr(), slice.count(), slice.type(), output.mutable_data_ptr(),
                         slice.count(), slice.type(), comm_, &request),
          "MPI_Iallgather");
    return work(c10d::OpType::_ALLGATHER_BASE, {request}, {output, input});
  }

  c10::intrusive_ptr<c10d::Work> all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&, std::vector<int64_t>&,
                                                   const c10d::AllToAllOptions&) override {
    const Bytes slice(bytes_of(input) / size_);
    MPI_Request request;
    check(MPI_Ialltoall(input.const_data_ptr(), slice.count(), slice.type(), output.mutable_data_ptr(), slice.count(), slice.type(), comm_,
                        &request),
          "MPI_Ialltoall");
    return work(c10d::OpType::ALLTOALL_BASE, {request}, {output, input});
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const Bytes all(bytes_of(tensors.at(0)));
    MPI_Request request;
    check(MPI_Ibcast(tensors[0].mutable_data_ptr(), all.count(), all.type(), static_cast<int>(options.rootRank), comm_, &request),
          "MPI_Ibcast");
    return work(c10d::OpType::BROADCAST, {request}, tensors);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    const Bytes all(bytes_of(tensors.at(0)));
    MPI_Request request;
    check(MPI_Isend(tensors[0].const_data_ptr(), all.count(), all.type(), to, tag, comm_, &request), "MPI_Isend");
    return work(c10d::OpType::SEND, {request}, tensors);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    const Bytes all(bytes_of(tensors.at(0)));
    MPI_Request request;
    check(MPI_Irecv(tensors[0].mutable_data_ptr(), all.count(), all.type(), from, tag, comm_, &request), "MPI_Irecv");
    return work(c10d::OpType::RECV, {request}, tensors);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    MPI_Request request;
    check(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
    return work(c10d::OpType::BARRIER, {request}, {});
  }

 private:
  static int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

  static MPI_Datatype type_of(at::ScalarType type) {
    switch (type) {
      case at::kFloat:
        return MPI_FLOAT;
      case at::kDouble:
        return MPI_DOUBLE;
      case at::kInt:
        return MPI_INT32_T;
      case at::kLong:
        return MPI_INT64_T;
      default:
        throw Error(
            ErrorCode::kUsage, "comm",
            base::str("backend mpi: all_reduce of ", c10::toString(type), ", allowed Float, Double, Int, Long (MPI has no 16-bit floats)"));
    }
  }

  c10::intrusive_ptr<c10d::Work> work(c10d::OpType type, std::vector<MPI_Request> requests, std::vector<at::Tensor> tensors) {
    return c10::make_intrusive<MpiWork>(rank_, type, std::move(requests), std::move(tensors));
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace
}  // namespace deepspeed::comm

extern "C" void deepspeed_mpi_factory(deepspeed::comm::BackendFactory* factory) {
  *factory = [](c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<deepspeed::comm::MpiBackend>(store, rank, size, timeout);
  };
}
