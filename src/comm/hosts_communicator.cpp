#include "comm/hosts_communicator.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "accel/pool.h"
#include "base/check.h"
#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::comm {
namespace {

// Tensors so small that slices are not worth their trips: every rank exchanges the whole with its peers on the other hosts.
constexpr int64_t kWholeElements = 1024;

uint64_t bytes_of(const at::Tensor& tensor) { return static_cast<uint64_t>(tensor.numel()) * tensor.element_size(); }

at::Tensor empty_like(const at::Tensor& tensor, int64_t elements) {
  return accel::pooled_empty(elements, tensor.scalar_type(), tensor.device());
}

template <typename... Pending>
std::vector<std::unique_ptr<PendingCollective>> list(Pending... pending) {
  std::vector<std::unique_ptr<PendingCollective>> all;
  (all.push_back(std::move(pending)), ...);
  return all;
}

}  // namespace

class HostsPending final : public PendingCollective {
 public:
  HostsPending(std::shared_ptr<HostsCommunicator> owner, std::shared_ptr<HostsCommunicator::Call> call)
      : owner_(std::move(owner)), call_(std::move(call)) {}
  ~HostsPending() override {
    try {
      wait();
    } catch (const std::exception&) {
      // The caller is already leaving because of an error that says more.
    }
  }
  bool ready() override {
    if (!call_) return true;
    owner_->advance();
    return call_->over();
  }
  void wait() override {
    if (const auto call = std::exchange(call_, nullptr)) owner_->finish(call);
  }

 private:
  std::shared_ptr<HostsCommunicator> owner_;
  std::shared_ptr<HostsCommunicator::Call> call_;
};

HostsCommunicator::HostsCommunicator(std::string name, Parts parts)
    : name_(std::move(name)),
      backend_(base::str(parts.first->backend(), "+", parts.across->backend())),
      first_(std::move(parts.first)),
      last_(std::move(parts.last)),
      across_(std::move(parts.across)),
      flat_(std::move(parts.flat)),
      domain_(std::move(parts.domain)) {
  DS_CHECK(first_->size() == last_->size() && flat_->size() == size() && flat_->rank() == rank(), first_->size(), " x ", across_->size());
  domain_->add_progress(this, [this] { return advance(); });
}

HostsCommunicator::~HostsCommunicator() { domain_->remove_progress(this); }

std::unique_ptr<PendingCollective> HostsCommunicator::start(const char* operation, const std::string& tag, uint64_t bytes,
                                                            std::deque<Part> parts) {
  auto call = std::make_shared<Call>();
  call->what = log_.note(operation, tag, bytes);
  call->parts = std::move(parts);
  calls_.push_back(call);
  advance();
  return std::make_unique<HostsPending>(shared_from_this(), call);
}

bool HostsCommunicator::may_start(size_t index) const {
  const Call& call = *calls_[index];
  for (size_t before = 0; before < index; ++before) {
    for (const Part& part : calls_[before]->parts) {
      if (part.on == call.parts.front().on) return false;
    }
  }
  return true;
}

bool HostsCommunicator::advance() {
  if (advancing_) return false;  // starting a part may wait, and waiting comes here
  advancing_ = true;
  bool any = false;
  try {
    for (size_t index = 0; index < calls_.size(); ++index) {
      Call& call = *calls_[index];
      for (;;) {
        if (!std::all_of(call.under_way.begin(), call.under_way.end(), [](const auto& pending) { return pending->ready(); })) break;
        for (const auto& pending : call.under_way) pending->wait();
        any = any || !call.under_way.empty();
        call.under_way.clear();
        if (call.parts.empty() || !may_start(index)) break;
        const Part part = std::move(call.parts.front());
        call.parts.pop_front();
        call.under_way = part.start();
        any = true;
      }
    }
    while (!calls_.empty() && calls_.front()->over()) calls_.pop_front();
  } catch (...) {
    advancing_ = false;
    broken_ = true;
    calls_.clear();
    throw;
  }
  advancing_ = false;
  return any;
}

// Never in one part's own wait: the other ranks may need this one to go on with other calls first.
void HostsCommunicator::finish(const std::shared_ptr<Call>& call) {
  constexpr std::chrono::microseconds kNap(50);  // what comes from other hosts wakes nobody
  domain_->wait(
      [&] {
        if (call->over()) return true;
        if (!broken_) return false;
        throw Error(
            ErrorCode::kCommFailed, "comm",
            base::str(call->what, ": this group failed before (rank ", rank(), " of ", size(), ", group '", name_, "', ", backend_, ")"));
      },
      call->what, name_, kNap);
}

std::unique_ptr<PendingCollective> HostsCommunicator::all_reduce(at::Tensor tensor, ReduceOp op, const std::string& tag) {
  DS_CHECK(tensor.is_contiguous());
  const at::Tensor flat = tensor.view({-1});
  const Part inside{On::kFirst, [this, flat, op, tag] { return list(first_->all_reduce(flat, op, tag)); }};
  if (flat.numel() <= kWholeElements) {
    return start("all_reduce", tag, bytes_of(tensor),
                 {inside, {On::kAcross, [this, flat, op, tag] { return list(across_->all_reduce(flat, op, tag)); }}});
  }
  // What does not divide among the local ranks goes with every one of them.
  const int64_t slice = flat.numel() / locals(), cut = slice * locals();
  const at::Tensor own = flat.narrow(0, slice * first_->rank(), slice), rest = flat.narrow(0, cut, flat.numel() - cut);
  const Part between{On::kAcross, [this, own, rest, op, tag] {
                       auto all = list(across_->all_reduce(own, op, tag));
                       if (rest.numel() > 0) all.push_back(across_->all_reduce(rest, op, tag));
                       return all;
                     }};
  const Part spread{On::kLast, [this, flat, own, cut, tag] { return list(last_->all_gather(flat.narrow(0, 0, cut), own, tag)); }};
  return start("all_reduce", tag, bytes_of(tensor), {inside, between, spread});
}

std::unique_ptr<PendingCollective> HostsCommunicator::all_gather(at::Tensor output, at::Tensor input, const std::string& tag) {
  DS_CHECK(output.numel() == input.numel() * size(), "output ", output.numel(), ", input ", input.numel(), ", ranks ", size());
  const int64_t n = input.numel();
  const at::Tensor mine = empty_like(input, hosts() * n);                     // [host][n], of this local rank
  const at::Tensor all = empty_like(input, hosts() * int64_t{locals()} * n);  // [local][host][n]
  const Part between{On::kAcross, [this, mine, input, tag] { return list(across_->all_gather(mine, input, tag)); }};
  // Into the output's order when both exchanges are over, which the last of the pending calls is waited for to do.
  struct Arrange final : PendingCollective {
    std::function<void()> act;
    bool ready() override { return true; }
    void wait() override { act(); }
  };
  const Part inside{On::kLast, [this, mine, all, output, n, tag] {
                      auto arrange = std::make_unique<Arrange>();
                      arrange->act = [this, all, output, n] {
                        output.view({hosts(), locals(), n}).copy_(all.view({locals(), hosts(), n}).transpose(0, 1));
                      };
                      return list(last_->all_gather(all, mine, tag), std::unique_ptr<PendingCollective>(std::move(arrange)));
                    }};
  return start("all_gather", tag, bytes_of(input), {between, inside});
}

std::unique_ptr<PendingCollective> HostsCommunicator::all_to_all(at::Tensor output, at::Tensor input, const std::string& tag) {
  DS_CHECK(output.numel() == input.numel() && output.numel() % size() == 0, "output ", output.numel(), ", input ", input.numel());
  const int64_t n = input.numel() / size();
  const at::Tensor sent = empty_like(input, input.numel()), got = empty_like(input, input.numel());
  const Part inside{On::kFirst, [this, sent, got, input, n, tag] {
                      sent.view({locals(), hosts(), n})
                          .copy_(input.view({hosts(), locals(), n}).transpose(0, 1));  // [local rank of the target][host of the target]
                      return list(first_->all_to_all(got, sent, tag));                 // [local rank of the sender][host of the target]
                    }};
  const Part between{On::kAcross, [this, sent, got, output, n, tag] {
                       sent.view({hosts(), locals(), n}).copy_(got.view({locals(), hosts(), n}).transpose(0, 1));
                       return list(across_->all_to_all(output, sent, tag));
                     }};
  return start("all_to_all", tag, bytes_of(input), {inside, between});
}

std::unique_ptr<PendingCollective> HostsCommunicator::broadcast(at::Tensor tensor, int root, const std::string& tag) {
  const int host = root / locals(), local = root % locals();
  std::deque<Part> parts;
  if (first_->rank() == local)
    parts.push_back({On::kAcross, [this, tensor, host, tag] { return list(across_->broadcast(tensor, host, tag)); }});
  parts.push_back({On::kLast, [this, tensor, local, tag] { return list(last_->broadcast(tensor, local, tag)); }});
  return start("broadcast", tag, bytes_of(tensor), std::move(parts));
}

std::unique_ptr<PendingCollective> HostsCommunicator::reduce_scatter(at::Tensor output, at::Tensor input, const std::string& tag,
                                                                     bool accumulate, PieceReady ready) {
  DS_CHECK(output.numel() * size() == input.numel() && output.scalar_type() == at::kFloat, "output ", output.numel(), ", input ",
           input.numel(), ", ranks ", size());
  const int64_t n = output.numel();
  const at::Tensor sums = empty_like(output, hosts() * n);  // [host that gets it][n]
  const Part inside{
      On::kFirst, [this, sums, input, n, tag] {
        std::vector<std::unique_ptr<PendingCollective>> all;
        for (int64_t host = 0; host < hosts(); ++host) {
          all.push_back(first_->reduce_scatter(sums.narrow(0, host * n, n), input.narrow(0, host * locals() * n, locals() * n), tag));
        }
        return all;
      }};
  const Part between{On::kAcross, [this, sums, output, accumulate, ready, tag] {
                       return list(across_->reduce_scatter(output, sums, tag, accumulate, ready));
                     }};
  return start("reduce_scatter", tag, bytes_of(input), {inside, between});
}

std::unique_ptr<PendingCollective> HostsCommunicator::send(at::Tensor tensor, int to, const std::string& tag) {
  return flat_->send(std::move(tensor), to, tag);
}

std::unique_ptr<PendingCollective> HostsCommunicator::receive(at::Tensor tensor, int from, const std::string& tag) {
  return flat_->receive(std::move(tensor), from, tag);
}

void HostsCommunicator::barrier(const std::string& tag) {
  const at::Tensor one = accel::pooled_empty(1, at::kInt, c10::Device(c10::DeviceType::CPU));
  *one.mutable_data_ptr<int32_t>() = 0;
  const auto part = [tag, one](On on, const std::shared_ptr<Communicator>& group) {
    return Part{on, [group, tag, one] { return list(group->all_reduce(one, ReduceOp::kMax, tag)); }};
  };
  start("barrier", tag, 0, {part(On::kFirst, first_), part(On::kAcross, across_), part(On::kLast, last_)})->wait();
}

std::shared_ptr<Communicator> HostsCommunicator::duplicate(const std::string& name) {
  Parts parts{first_->duplicate(name), last_->duplicate(name), across_->duplicate(name), flat_->duplicate(name), domain_};
  return std::make_shared<HostsCommunicator>(base::str(name_, "/", name), std::move(parts));
}

}  // namespace deepspeed::comm
