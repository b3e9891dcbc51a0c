#include "comm/shm_communicator.h"

#include <ATen/core/Tensor.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "accel/pool.h"
#include "base/check.h"
#include "base/log.h"
#include "base/text.h"
#include "base/trace.h"
#include "comm/data_type.h"
#include "comm/sum_slices.h"
#include "deepspeed/error.h"
#include "kernels/cast.h"
#include "kernels/reduce.h"
#include "shm/region.h"

namespace deepspeed::comm {
namespace {

// Piece of a sum that stays in the second-level cache with its inputs.
constexpr size_t kPieceBytes = 128 * 1024;
static_assert(kPieceBytes % (kPieceElements * sizeof(float)) == 0);
// Up to this size an all-reduce is done in one exchange; above, what two exchanges save in copies is worth more than the second one costs.
constexpr size_t kOneExchangeBytes = 32 * 1024;
constexpr size_t kCacheLine = 64;
constexpr size_t kPipelineBytes = 256 * 1024;

size_t bytes_of(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()) * tensor.element_size(); }

void check_tensor(const at::Tensor& tensor) {
  DS_CHECK(tensor.is_contiguous() && tensor.is_cpu(), "ranks on one host exchange contiguous CPU tensors, got ", tensor.device().str(),
           " strides ", tensor.strides());
}

template <typename T>
void combine(T* out, const T* in, int64_t n, ReduceOp op) {
  for (int64_t i = 0; i < n; ++i) out[i] = op == ReduceOp::kSum ? static_cast<T>(out[i] + in[i]) : std::max(out[i], in[i]);
}

// out = out (op) in, elements of `type`; 16-bit types go through float.
void combine(void* out, const void* in, int64_t n, at::ScalarType type, ReduceOp op) {
  switch (type) {
    case at::kFloat:
      if (op == ReduceOp::kSum) {
        const auto count = static_cast<size_t>(n);
        return kernels::sum_slices(static_cast<float*>(out), in, DataType::kFloat32, 1, count, count, /*accumulate=*/true);
      }
      return combine(static_cast<float*>(out), static_cast<const float*>(in), n, op);
    case at::kDouble:
      return combine(static_cast<double*>(out), static_cast<const double*>(in), n, op);
    case at::kLong:
      return combine(static_cast<int64_t*>(out), static_cast<const int64_t*>(in), n, op);
    case at::kInt:
      return combine(static_cast<int32_t*>(out), static_cast<const int32_t*>(in), n, op);
    default: {
      const DataType half = data_type_of(type);
      std::vector<float> a(static_cast<size_t>(n)), b(static_cast<size_t>(n));
      kernels::cast_to_float(a.data(), out, half, a.size());
      kernels::cast_to_float(b.data(), in, half, b.size());
      combine(a.data(), b.data(), n, op);
      kernels::cast_from_float(out, half, a.data(), a.size());
    }
  }
}

}  // namespace

namespace {

class ShmPending final : public PendingCollective {
 public:
  ShmPending(std::shared_ptr<shm::Group> group, uint64_t number, std::string what, uint64_t bytes, std::vector<at::Tensor> keep_alive,
             bool own_end)
      : group_(std::move(group)),
        number_(number),
        what_(std::move(what)),
        bytes_(bytes),
        keep_alive_(std::move(keep_alive)),
        own_end_(own_end) {
    if (trace::active) called_ = trace::now();
  }

  ~ShmPending() override {
    try {
      wait();
    } catch (const std::exception&) {
      // The caller is already leaving because of an error that says more.
    }
  }

  bool ready() override {
    if (!group_) return true;
    group_->progress();
    return own_end_ ? group_->done(number_) : group_->everyone_done(number_);
  }

  void wait() override {
    const auto group = std::move(group_);
    group_ = nullptr;
    if (!group) return;
    const int64_t begin = called_ != 0 ? trace::now() : 0;
    {
      trace::Span span(trace::Kind::kWait, what_);
      if (own_end_) {
        group->wait_own(number_, what_);
      } else {
        group->wait_all(number_, what_);
      }
    }
    if (called_ != 0) trace::record_flight(what_, bytes_, called_, begin, trace::now());
    keep_alive_.clear();
  }

 private:
  std::shared_ptr<shm::Group> group_;  // until waited for
  uint64_t number_;
  std::string what_;
  uint64_t bytes_;
  int64_t called_ = 0;  // time, while a trace is recorded
  std::vector<at::Tensor> keep_alive_;
  bool own_end_;  // peers read nothing of the caller's own memory, so its result is all it waits for
};

}  // namespace

ShmCommunicator::ShmCommunicator(std::string name, std::shared_ptr<shm::Domain> domain, std::chrono::milliseconds timeout)
    : group_(std::make_shared<shm::Group>(std::move(name), std::move(domain))), timeout_(timeout) {}

std::shared_ptr<Communicator> ShmCommunicator::duplicate(const std::string& name) {
  return std::make_shared<ShmCommunicator>(base::str(group_->name(), "/", name), group_->domain(), timeout_);
}

std::unique_ptr<PendingCollective> ShmCommunicator::post(const char* operation, const std::string& tag, const void* data, size_t bytes,
                                                         std::function<void()> take, std::vector<at::Tensor> keep_alive) {
  const std::string what = log_.note(operation, tag, bytes);
  const uint64_t number = group_->describe(what, log_.hash(), data, bytes, std::move(take));
  group_->progress();
  return std::make_unique<ShmPending>(group_, number, what, bytes, std::move(keep_alive), /*own_end=*/false);
}

// out[bytes] = the ranks' data of the call at `offset`, combined in rank order; `own` is this rank's. `out` may be `own`.
void ShmCommunicator::reduce_piece(std::byte* out, uint64_t number, size_t offset, size_t bytes, const std::byte* own, at::ScalarType type,
                                   ReduceOp op) {
  if (scratch_.size() < 2 * kPieceBytes) scratch_.resize(2 * kPieceBytes);
  std::byte *sum = scratch_.data(), *incoming = sum + kPieceBytes;
  const auto elements = static_cast<int64_t>(bytes / c10::elementSize(type));
  for (int peer = 0; peer < size(); ++peer) {
    const std::byte* source = own;
    if (peer != rank()) {
      std::byte* target = peer == 0 ? sum : incoming;
      group_->read_peer(peer, number, target, offset, bytes);
      source = target;
    }
    if (peer > 0) {
      combine(sum, source, elements, type, op);
    } else if (source != sum) {
      std::memcpy(sum, source, bytes);
    }
  }
  std::memcpy(out, sum, bytes);
}

// Each rank combines all ranks' data itself.
std::unique_ptr<PendingCollective> ShmCommunicator::all_reduce_at_once(at::Tensor tensor, ReduceOp op, const std::string& tag) {
  // Peers read the input while this rank already writes the result, so the input needs a place of its own.
  auto input = accel::pooled_empty(tensor.numel(), tensor.scalar_type(), tensor.device());
  const size_t bytes = bytes_of(tensor);
  if (bytes > 0) std::memcpy(input.mutable_data_ptr(), tensor.const_data_ptr(), bytes);
  const auto take = [this, tensor, op, bytes, number = group_->next()] {
    auto* data = static_cast<std::byte*>(tensor.mutable_data_ptr());
    for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
      const size_t count = std::min(kPieceBytes, bytes - begin);
      reduce_piece(data + begin, number, begin, count, data + begin, tensor.scalar_type(), op);
    }
  };
  return post("all_reduce", tag, input.const_data_ptr(), bytes, take, {tensor, input});
}

// Through places that all ranks map: one exchange, no system call, and the call is over for a rank when it has the result, whatever its peers still read.
std::unique_ptr<PendingCollective> ShmCommunicator::all_reduce_staged(at::Tensor tensor, ReduceOp op, const std::string& tag) {
  const size_t bytes = bytes_of(tensor);
  const std::string what = log_.note("all_reduce", tag, bytes);
  const uint64_t number = group_->next();
  const size_t slot = staged_++ % kStagingSlots;
  group_->wait_all(staged_by_[slot], what);
  staged_by_[slot] = number;
  std::byte* place = staging_->data() + (static_cast<size_t>(rank()) * kStagingSlots + slot) * kStagingBytes;
  std::memcpy(place, tensor.const_data_ptr(), bytes);
  const auto take = [this, tensor, op, bytes, number] {
    std::vector<const void*> places;
    for (int peer = 0; peer < size(); ++peer) places.push_back(group_->peer_data(peer, number));
    void* out = tensor.mutable_data_ptr();
    const auto elements = static_cast<int64_t>(bytes / tensor.element_size());
    if (tensor.scalar_type() == at::kFloat && op == ReduceOp::kSum) {
      kernels::sum_slices(static_cast<float*>(out), places.data(), DataType::kFloat32, places.size(), static_cast<size_t>(elements), false);
      return;
    }
    std::memcpy(out, places[0], bytes);
    for (size_t peer = 1; peer < places.size(); ++peer) combine(out, places[peer], elements, tensor.scalar_type(), op);
  };
  group_->describe(what, log_.hash(), place, bytes, take);
  group_->progress();
  return std::make_unique<ShmPending>(group_, number, what, bytes, std::vector<at::Tensor>{tensor}, /*own_end=*/true);
}

// Made at the first use: a collective of its own, at the same call on all ranks.
bool ShmCommunicator::has_staging() {
  if (!staging_tried_) {
    staging_tried_ = true;
    staging_ = share_memory(static_cast<size_t>(size()) * kStagingSlots * kStagingBytes, "small sums");
  }
  return staging_ != nullptr;
}

std::unique_ptr<PendingCollective> ShmCommunicator::all_reduce(at::Tensor tensor, ReduceOp op, const std::string& tag) {
  check_tensor(tensor);
  const size_t bytes = bytes_of(tensor);
  if (bytes > shm::kInlineBytes && bytes <= kStagingBytes && size() > 1 && has_staging())
    return all_reduce_staged(std::move(tensor), op, tag);
  // Two ranks read as much in one exchange as in two, and pieces that stay in the cache cost less than the system's way into a peer's memory.
  if (bytes > kStagingBytes && size() == 2 && has_staging()) {
    const at::Tensor flat = tensor.view({-1});
    const auto piece = static_cast<int64_t>(kPipelineBytes / flat.element_size());
    std::unique_ptr<PendingCollective> last;
    for (int64_t begin = 0; begin < flat.numel(); begin += piece) {
      auto next = all_reduce_staged(flat.narrow(0, begin, std::min(piece, flat.numel() - begin)), op, tag);
      if (last) last->wait();
      last = std::move(next);
    }
    return last;
  }
  if (bytes <= kOneExchangeBytes || size() == 1) return all_reduce_at_once(std::move(tensor), op, tag);
  // Two exchanges: each rank combines one slice of all ranks' tensors, in place as nobody else reads that slice of its own one, then all take the
  // others' slices.
  const auto ranks = static_cast<size_t>(size());
  const size_t slice = ((bytes + ranks - 1) / ranks + kCacheLine - 1) / kCacheLine * kCacheLine;
  const std::string what = log_.note("all_reduce", tag, bytes);
  const uint64_t reduce = group_->next(), gather = reduce + 1;
  auto* data = static_cast<std::byte*>(tensor.mutable_data_ptr());
  const auto bounds = [slice, bytes](int rank) {
    const size_t begin = std::min(bytes, slice * static_cast<size_t>(rank));
    return std::pair(begin, std::min(bytes, begin + slice));
  };
  const auto take_sums = [this, bounds, data, reduce, op, type = tensor.scalar_type()] {
    const auto [begin, end] = bounds(rank());
    for (size_t from = begin; from < end; from += kPieceBytes) {
      reduce_piece(data + from, reduce, from, std::min(kPieceBytes, end - from), data + from, type, op);
    }
  };
  const auto take_slices = [this, bounds, data, gather] {
    for (int peer = 0; peer < size(); ++peer) {
      const auto [begin, end] = bounds(peer);
      if (peer != rank()) group_->read_peer(peer, gather, data + begin, begin, end - begin);
    }
  };
  group_->describe(what, log_.hash(), data, bytes, take_sums);
  group_->describe(what, log_.hash(), data, bytes, take_slices, reduce);
  group_->progress();
  return std::make_unique<ShmPending>(group_, gather, what, bytes, std::vector<at::Tensor>{tensor}, /*own_end=*/false);
}

std::unique_ptr<PendingCollective> ShmCommunicator::all_gather(at::Tensor output, at::Tensor input, const std::string& tag) {
  check_tensor(output);
  check_tensor(input);
  DS_CHECK(output.numel() == input.numel() * size(), "output ", output.numel(), ", input ", input.numel(), ", ranks ", size());
  const size_t bytes = bytes_of(input);
  const uint64_t number = group_->next();
  const auto take = [this, output, input, bytes, number] {
    auto* out = static_cast<std::byte*>(output.mutable_data_ptr());
    for (int peer = 0; peer < size(); ++peer) {
      std::byte* target = out + bytes * static_cast<size_t>(peer);
      if (peer == rank() && target == input.const_data_ptr()) continue;
      group_->read_peer(peer, number, target, 0, bytes);
    }
  };
  return post("all_gather", tag, input.const_data_ptr(), bytes, take, {output, input});
}

std::unique_ptr<PendingCollective> ShmCommunicator::all_to_all(at::Tensor output, at::Tensor input, const std::string& tag) {
  check_tensor(output);
  check_tensor(input);
  DS_CHECK(output.numel() == input.numel() && output.numel() % size() == 0, "output ", output.numel(), ", input ", input.numel());
  const size_t bytes = bytes_of(input);
  const uint64_t number = group_->next();
  const auto take = [this, output, bytes, number] {
    const size_t slice = bytes / static_cast<size_t>(size());
    auto* out = static_cast<std::byte*>(output.mutable_data_ptr());
    for (int peer = 0; peer < size(); ++peer)
      group_->read_peer(peer, number, out + slice * static_cast<size_t>(peer), slice * static_cast<size_t>(rank()), slice);
  };
  return post("all_to_all", tag, input.const_data_ptr(), bytes, take, {output, input});
}

std::unique_ptr<PendingCollective> ShmCommunicator::broadcast(at::Tensor tensor, int root, const std::string& tag) {
  check_tensor(tensor);
  const size_t bytes = bytes_of(tensor);
  const uint64_t number = group_->next();
  const auto take = [this, tensor, root, bytes, number] {
    if (root != rank()) group_->read_peer(root, number, tensor.mutable_data_ptr(), 0, bytes);
  };
  return post("broadcast", tag, tensor.const_data_ptr(), bytes, take, {tensor});
}

std::unique_ptr<PendingCollective> ShmCommunicator::reduce_scatter(at::Tensor output, at::Tensor input, const std::string& tag,
                                                                   bool accumulate, PieceReady ready) {
  check_tensor(output);
  check_tensor(input);
  DS_CHECK(output.numel() * size() == input.numel() && output.scalar_type() == at::kFloat, "output ", output.numel(), ", input ",
           input.numel());
  const uint64_t number = group_->next();
  const auto take = [this, output, input, accumulate, ready, number] {
    const DataType type = data_type_of(input.scalar_type());
    const size_t width = kernels::bytes_of(type);
    const auto elements = static_cast<size_t>(output.numel());
    const size_t first = static_cast<size_t>(rank()) * elements * width;
    // Slices that can be read in place are; those of other processes' own memory come in pieces through a scratch in the cache.
    std::vector<const std::byte*> slices(static_cast<size_t>(size()));
    bool all_in_place = true;
    for (int peer = 0; peer < size(); ++peer) {
      const std::byte* data = peer == rank() ? static_cast<const std::byte*>(input.const_data_ptr()) : group_->peer_data(peer, number);
      slices[static_cast<size_t>(peer)] = data ? data + first : nullptr;
      all_in_place = all_in_place && data;
    }
    const size_t piece = all_in_place ? elements : std::min(kPieceBytes / width, elements);
    const size_t scratch = all_in_place ? 0 : piece * width * static_cast<size_t>(size());
    if (scratch_.size() < scratch) scratch_.resize(scratch);
    std::vector<const void*> sources(slices.size());
    auto* out = output.mutable_data_ptr<float>();
    for (size_t begin = 0; begin < elements; begin += piece) {
      const size_t count = std::min(piece, elements - begin);
      for (size_t peer = 0; peer < slices.size(); ++peer) {
        if (slices[peer]) {
          sources[peer] = slices[peer] + begin * width;
          continue;
        }
        std::byte* target = scratch_.data() + peer * piece * width;
        group_->read_peer(static_cast<int>(peer), number, target, first + begin * width, count * width);
        sources[peer] = target;
      }
      sum_in_pieces(out, static_cast<int64_t>(begin), static_cast<int64_t>(count), sources, type, accumulate, ready);
    }
  };
  return post("reduce_scatter", tag, input.const_data_ptr(), bytes_of(input), take, {output, input});
}

std::unique_ptr<PendingCollective> ShmCommunicator::send(at::Tensor, int, const std::string& tag) {
  throw Error(ErrorCode::kNotBuilt, "comm",
              base::str("send '", tag, "': point to point between ranks of one host needs backend gloo (DS_COMM_BACKEND=gloo)"));
}

std::unique_ptr<PendingCollective> ShmCommunicator::receive(at::Tensor, int, const std::string& tag) {
  throw Error(ErrorCode::kNotBuilt, "comm",
              base::str("receive '", tag, "': point to point between ranks of one host needs backend gloo (DS_COMM_BACKEND=gloo)"));
}

std::shared_ptr<SharedMemory> ShmCommunicator::share_memory(size_t bytes, const std::string& tag) {
  const int64_t id = group_->domain()->next_region();
  if (bytes == 0) return nullptr;
  const auto cpu = c10::Device(c10::DeviceType::CPU);
  auto path = accel::pooled_empty(64, at::kByte, cpu);
  auto failed = accel::pooled_empty(1, at::kInt, cpu);
  auto* text = reinterpret_cast<char*>(path.mutable_data_ptr());
  std::memset(text, 0, 64);
  int fd = -1;
  std::string cause;
  try {
    if (rank() == 0) {
      fd = shm::Region::create(bytes);
      std::snprintf(text, 64, "%s", shm::Region::path_of(fd).c_str());
    }
  } catch (const Error& error) {
    cause = error.what();
  }
  broadcast(path, 0, base::str("place of ", tag))->wait();
  std::shared_ptr<shm::Region> region;
  if (cause.empty()) {
    try {
      if (rank() != 0) fd = ::open(text, O_RDWR | O_CLOEXEC);
      if (fd < 0) throw Error(ErrorCode::kEnvironment, "comm", base::str("shared memory: opening a segment: ", std::strerror(errno)));
      region = std::make_shared<shm::Region>(group_->domain(), id, fd, bytes);
    } catch (const Error& error) {
      cause = error.what();
    }
  }
  *failed.mutable_data_ptr<int32_t>() = cause.empty() ? 0 : 1;
  all_reduce(failed, ReduceOp::kMax, base::str("who has ", tag))->wait();
  if (!cause.empty()) base::log_warning(cause, "; ", tag, " are not shared between the ranks of this host");
  return *failed.const_data_ptr<int32_t>() == 0 ? region : nullptr;
}

void ShmCommunicator::barrier(const std::string& tag) { post("barrier", tag, nullptr, 0, {}, {})->wait(); }

}  // namespace deepspeed::comm
