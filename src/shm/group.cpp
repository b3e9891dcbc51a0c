#include "shm/group.h"

#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "base/text.h"
#include "base/trace.h"
#include "deepspeed/error.h"

namespace deepspeed::shm {

Group::Group(std::string name, std::shared_ptr<Domain> domain)
    : name_(std::move(name)), domain_(std::move(domain)), group_(domain_->take_group()) {
  // A place that another group had before goes on counting where that one ended.
  number_ = domain_->slot(group_, rank()).posted.load();
  domain_->add_progress(this, [this] { return progress(); });
}

Group::~Group() {
  domain_->remove_progress(this);
  domain_->free_group(group_);
}

uint64_t Group::describe(const std::string& what, uint64_t hash, const void* data, size_t bytes, Take take, uint64_t after) {
  const uint64_t number = ++number_;
  // The ring's place is free when every peer has dealt with the call that had it.
  if (number > kRing) wait_all(number - kRing, what);
  GroupRank& mine = domain_->slot(group_, rank());
  Descriptor& descriptor = mine.ring[number % kRing];
  descriptor.hash = hash;
  descriptor.bytes = bytes;
  std::snprintf(descriptor.what, sizeof descriptor.what, "%s", what.c_str());
  if (bytes <= kInlineBytes) {
    descriptor.region = kInline;
    if (bytes > 0) std::memcpy(descriptor.data, data, bytes);
  } else {
    const auto [region, offset] = domain_->find_region(data, bytes);
    descriptor.region = region;
    descriptor.address = region == kOwnMemory ? reinterpret_cast<uint64_t>(data) : offset;
  }
  queue_.push_back({number, what, std::move(take), after});
  mine.posted.store(number, std::memory_order_release);
  domain_->notify();
  return number;
}

const Descriptor& Group::peer_descriptor(int rank, uint64_t number) const { return domain_->slot(group_, rank).ring[number % kRing]; }

const std::byte* Group::peer_data(int rank, uint64_t number) const {
  const Descriptor& descriptor = peer_descriptor(rank, number);
  if (descriptor.region == kInline) return descriptor.data;
  if (descriptor.region != kOwnMemory) {
    const std::byte* data = domain_->region_data(descriptor.region, descriptor.address);
    DS_CHECK(data != nullptr, "region ", descriptor.region, " of ", descriptor.what);
    return data;
  }
  return domain_->same_process(rank) ? reinterpret_cast<const std::byte*>(descriptor.address) : nullptr;
}

void Group::read_peer(int rank, uint64_t number, void* out, size_t offset, size_t bytes) const {
  const Descriptor& descriptor = peer_descriptor(rank, number);
  DS_CHECK(offset + bytes <= descriptor.bytes, offset, " + ", bytes, " of ", descriptor.bytes);
  if (bytes == 0) return;
  if (const std::byte* data = peer_data(rank, number)) {
    if (data + offset != out) std::memcpy(out, data + offset, bytes);
  } else {
    domain_->read(rank, out, descriptor.address + offset, bytes, peer_descriptor(this->rank(), number).what, name_);
  }
}

bool Group::done(uint64_t number) const { return domain_->slot(group_, rank()).done.load(std::memory_order_acquire) >= number; }

bool Group::everyone_done(uint64_t number) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (domain_->slot(group_, peer).done.load(std::memory_order_acquire) < number) return false;
  }
  return true;
}

void Group::wait_own(uint64_t number, const std::string& what) {
  domain_->wait([&] { return done(number); }, what, name_);
}

void Group::wait_all(uint64_t number, const std::string& what) {
  domain_->wait([&] { return everyone_done(number); }, what, name_);
}

void Group::compare(const Call& call) const {
  const Descriptor& mine = peer_descriptor(rank(), call.number);
  for (int peer = 0; peer < size(); ++peer) {
    const Descriptor& theirs = peer_descriptor(peer, call.number);
    if (theirs.hash == mine.hash) continue;
    throw Error(ErrorCode::kCommMismatch, "comm",
                base::str(call.what, ": got ", theirs.what, " on rank ", peer, ", allowed the same call on all (rank ", rank(), " of ",
                          size(), ", group '", name_, "', shm); ranks run the same steps in the same order"));
  }
}

bool Group::progress() {
  bool any = false;
  while (!queue_.empty()) {
    const uint64_t number = queue_.front().number;
    for (int peer = 0; peer < size(); ++peer) {
      if (domain_->slot(group_, peer).posted.load(std::memory_order_acquire) < number) return any;
    }
    if (const uint64_t after = queue_.front().after; after > 0 && !everyone_done(after)) return any;
    Call call = std::move(queue_.front());
    queue_.pop_front();
    compare(call);
    if (call.take) {
      const bool sums = call.what.starts_with("reduce") || call.what.starts_with("all_reduce");
      const int64_t begin = trace::active ? trace::now() : 0;
      {
        trace::Span span(sums ? trace::Kind::kReduce : trace::Kind::kGather, call.what, peer_descriptor(rank(), number).bytes);
        call.take();
      }
      if (begin != 0) trace::record_busy(call.what, trace::now() - begin);
    }
    domain_->slot(group_, rank()).done.store(number, std::memory_order_release);
    domain_->notify();
    any = true;
  }
  return any;
}

}  // namespace deepspeed::shm
