#include "comm/c10d_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accel/pool.h"
#include "base/check.h"
#include "base/text.h"
#include "base/trace.h"
#include "comm/sum_slices.h"
#include "deepspeed/error.h"

namespace deepspeed::comm {
namespace {

// Back ends move bytes; the element type matters only where something is added up.
at::Tensor as_bytes(const at::Tensor& tensor) {
  DS_CHECK(tensor.is_contiguous(), "collectives take contiguous tensors, got strides ", tensor.strides());
  return tensor.view({-1}).view(at::kByte);
}

uint64_t bytes_of(const at::Tensor& tensor) { return static_cast<uint64_t>(tensor.numel()) * tensor.element_size(); }

class Pending final : public PendingCollective {
 public:
  Pending(C10dCommunicator* owner, std::string what, uint64_t bytes, c10::intrusive_ptr<c10d::Work> work,
          std::vector<at::Tensor> keep_alive, std::function<void()> finish)
      : owner_(owner),
        what_(std::move(what)),
        bytes_(bytes),
        work_(std::move(work)),
        keep_alive_(std::move(keep_alive)),
        finish_(std::move(finish)) {
    if (trace::active && work_) called_ = trace::now();
  }

  // An operation nobody waited for still reads and writes its tensors; let it end before they go.
  ~Pending() override {
    if (!work_) return;
    try {
      work_->wait(owner_->timeout());
    } catch (...) {
      // The caller is already leaving because of an error that says more.
    }
  }

  bool ready() override { return !work_ || work_->isCompleted(); }

  void wait() override {
    if (work_) {
      const auto work = std::move(work_);
      work_ = nullptr;
      const int64_t begin = called_ != 0 ? trace::now() : 0;
      {
        // The other ranks, the wire and the back end's own work, which cannot be told apart from here.
        trace::Span span(trace::Kind::kWait, what_, bytes_);
        owner_->guarded(what_, [&] { work->wait(owner_->timeout()); });
      }
      if (called_ != 0) trace::record_flight(what_, bytes_, called_, begin, trace::now());
    }
    if (finish_) {
      trace::Span span(trace::Kind::kReduce, what_, bytes_);
      finish_();
    }
    finish_ = {};
    keep_alive_.clear();
  }

 private:
  C10dCommunicator* owner_;
  std::string what_;
  uint64_t bytes_;
  int64_t called_ = 0;  // time, while a trace is recorded
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> keep_alive_;
  std::function<void()> finish_;
};

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

ErrorCode code_of(const std::string& cause) {
  const auto has = [&](const char* word) { return cause.find(word) != std::string::npos; };
  if (has("closed by peer") || has("reset by peer") || has("Broken pipe") || has("refused")) return ErrorCode::kPeerDied;
  if (has("imed out") || has("imeout")) return ErrorCode::kCommTimeout;
  if (has("doesn't match") || has("does not match") || has("op.preamble") || has("isMatch")) return ErrorCode::kCommMismatch;
  return ErrorCode::kCommFailed;
}

}  // namespace

C10dCommunicator::C10dCommunicator(std::string name, const char* backend_name, c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   std::chrono::milliseconds timeout, BackendFactory factory)
    : name_(std::move(name)),
      backend_name_(backend_name),
      store_(std::move(store)),
      rank_(rank),
      size_(size),
      timeout_(timeout),
      factory_(std::move(factory)) {
  if (size_ == 1) return;
  guarded(base::str("joining group '", name_, "'"),
          [&] { backend_ = factory_(c10::make_intrusive<c10d::PrefixStore>(name_, store_), rank_, size_, timeout_); });
}

void C10dCommunicator::guarded(const std::string& what, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(what, error.what());
  }
}

void C10dCommunicator::fail(const std::string& what, const std::string& cause) {
  const std::string first_line = cause.substr(0, cause.find('\n'));
  throw Error(code_of(cause), "comm",
              base::str(what, ": ", first_line, " (rank ", rank_, " of ", size_, ", group '", name_, "', ", backend_name_, "). ",
                        reports_of_others(what)));
}

std::string C10dCommunicator::reports_of_others(const std::string& what) {
  if (!store_ || size_ == 1) return "";
  const auto key = [&](int rank) { return base::str("failure/", name_, "/", rank); };
  std::vector<std::string> reports;
  std::vector<std::string> silent;
  try {
    store_->set(key(rank_), to_bytes(what));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      bool there = false;
      do {
        there = store_->check({key(other)});
      } while (!there && std::chrono::steady_clock::now() < deadline);
      if (there) {
        const auto bytes = store_->get(key(other));
        reports.push_back(base::str("rank ", other, " stopped in ", std::string(bytes.begin(), bytes.end())));
      } else {
        silent.push_back(std::to_string(other));
      }
    }
  } catch (const std::exception&) {
    return "The store on rank 0 cannot be reached: rank 0 is gone.";
  }
  if (!silent.empty()) reports.push_back(base::str("no report from rank ", base::join(silent, ", "), " (dead, or busy elsewhere)"));
  return base::str("Others: ", base::join(reports, "; "), ".");
}

std::unique_ptr<PendingCollective> C10dCommunicator::start(const char* operation, const std::string& tag, uint64_t bytes,
                                                           const std::function<c10::intrusive_ptr<c10d::Work>()>& issue,
                                                           std::vector<at::Tensor> keep_alive, std::function<void()> finish) {
  const std::string what = log_.note(operation, tag, bytes);
  c10::intrusive_ptr<c10d::Work> work;
  if (backend_) guarded(what, [&] { work = issue(); });
  return std::make_unique<Pending>(this, what, bytes, std::move(work), std::move(keep_alive), std::move(finish));
}

std::unique_ptr<PendingCollective> C10dCommunicator::all_reduce(at::Tensor tensor, ReduceOp op, const std::string& tag) {
  DS_CHECK(tensor.is_contiguous());
  c10d::AllreduceOptions options;
  options.reduceOp = op == ReduceOp::kSum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
  options.timeout = timeout_;
  return start("all_reduce", tag, bytes_of(tensor),
               [&] {
                 std::vector<at::Tensor> tensors{tensor};
                 return backend_->allreduce(tensors, options);
               },
               {tensor});
}

std::unique_ptr<PendingCollective> C10dCommunicator::all_gather(at::Tensor output, at::Tensor input, const std::string& tag) {
  DS_CHECK(output.numel() == input.numel() * size_, "output ", output.numel(), ", input ", input.numel(), ", ranks ", size_);
  if (size_ == 1) {
    log_.note("all_gather", tag, bytes_of(input));
    if (output.data_ptr() != input.data_ptr()) output.copy_(input);
    return std::make_unique<Pending>(this, "", 0, nullptr, std::vector<at::Tensor>{}, std::function<void()>{});
  }
  auto out = as_bytes(output);
  auto in = as_bytes(input);
  c10d::AllgatherOptions options;
  options.timeout = timeout_;
  return start("all_gather", tag, bytes_of(input), [&] { return backend_->all_gather_single(out, in, options); }, {output, input});
}

std::unique_ptr<PendingCollective> C10dCommunicator::all_to_all(at::Tensor output, at::Tensor input, const std::string& tag) {
  DS_CHECK(output.numel() == input.numel() && output.numel() % size_ == 0, "output ", output.numel(), ", input ", input.numel());
  if (size_ == 1) {
    log_.note("all_to_all", tag, bytes_of(input));
    output.copy_(input);
    return std::make_unique<Pending>(this, "", 0, nullptr, std::vector<at::Tensor>{}, std::function<void()>{});
  }
  auto out = as_bytes(output);
  auto in = as_bytes(input);
  std::vector<int64_t> equal;
  c10d::AllToAllOptions options;
  options.timeout = timeout_;
  return start("all_to_all", tag, bytes_of(input), [&] { return backend_->all_to_all_single(out, in, equal, equal, options); },
               {output, input});
}

std::unique_ptr<PendingCollective> C10dCommunicator::broadcast(at::Tensor tensor, int root, const std::string& tag) {
  auto bytes = as_bytes(tensor);
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout_;
  return start("broadcast", tag, bytes_of(tensor),
               [&] {
                 std::vector<at::Tensor> tensors{bytes};
                 return backend_->broadcast(tensors, options);
               },
               {tensor});
}

std::unique_ptr<PendingCollective> C10dCommunicator::reduce_scatter(at::Tensor output, at::Tensor input, const std::string& tag,
                                                                    bool accumulate, PieceReady ready) {
  DS_CHECK(output.numel() * size_ == input.numel() && output.scalar_type() == at::kFloat, "output ", output.numel(), ", input ",
           input.numel(), ", ranks ", size_);
  const int64_t count = output.numel();
  const int size = size_;
  if (size_ == 1) {
    log_.note("reduce_scatter", tag, bytes_of(input));
    sum_slices(output, input, 1, accumulate, ready);
    return std::make_unique<Pending>(this, "", 0, nullptr, std::vector<at::Tensor>{}, std::function<void()>{});
  }
  // Every rank sends each owner its slice; the owner adds them up in rank order. The same bytes as the best reduce-scatter, the same bits on
  // any back end, and fp32 sums of 16-bit gradients.
  auto staging = accel::pooled_empty(count * size, input.scalar_type(), input.device());
  auto out = as_bytes(staging);
  auto in = as_bytes(input);
  std::vector<int64_t> equal;
  c10d::AllToAllOptions options;
  options.timeout = timeout_;
  return start(
      "reduce_scatter", tag, bytes_of(input), [&] { return backend_->all_to_all_single(out, in, equal, equal, options); },
      {output, input, staging}, [output, staging, size, accumulate, ready] { sum_slices(output, staging, size, accumulate, ready); });
}

std::unique_ptr<PendingCollective> C10dCommunicator::send(at::Tensor tensor, int to, const std::string& tag) {
  auto bytes = as_bytes(tensor);
  return start("send", tag, bytes_of(tensor),
               [&] {
                 std::vector<at::Tensor> tensors{bytes};
                 return backend_->send(tensors, to, 0);
               },
               {tensor});
}

std::unique_ptr<PendingCollective> C10dCommunicator::receive(at::Tensor tensor, int from, const std::string& tag) {
  auto bytes = as_bytes(tensor);
  return start("receive", tag, bytes_of(tensor),
               [&] {
                 std::vector<at::Tensor> tensors{bytes};
                 return backend_->recv(tensors, from, 0);
               },
               {tensor});
}

void C10dCommunicator::barrier(const std::string& tag) {
  c10d::BarrierOptions options;
  options.timeout = timeout_;
  start("barrier", tag, 0, [&] { return backend_->barrier(options); }, {})->wait();
}

std::shared_ptr<Communicator> C10dCommunicator::duplicate(const std::string& name) {
  // The keys in the store must be new, whoever else asks for a group of this name; ranks count alike.
  return std::make_shared<C10dCommunicator>(base::str(name_, "/", name, ".", ++duplicates_), backend_name_, store_, rank_, size_, timeout_,
                                            factory_);
}

}  // namespace deepspeed::comm
