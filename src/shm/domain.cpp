#include "shm/domain.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <thread>

#include "base/check.h"
#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::shm {

struct alignas(64) Domain::Header {
  std::atomic<uint32_t> events;  // futex word: changes with every notify()
  std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> probed;   // ranks that have tried to read their peers
  std::atomic<uint32_t> refused;  // of these, how many could not
};

struct alignas(64) Domain::RankSlot {
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> left;  // the rank has ended its use
  std::atomic<uint64_t> probe_address;
};

namespace {

constexpr uint64_t kProbe = 0x5eed5eed12345678ull;

int futex_wait(std::atomic<uint32_t>* word, uint32_t value, std::chrono::milliseconds limit) {
  const timespec timeout{limit.count() / 1000, (limit.count() % 1000) * 1'000'000};
  return static_cast<int>(::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, value, &timeout, nullptr, 0));
}

void futex_wake(std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Ranks that have a core each may spin for a moment; more ranks than cores must not. To be woken costs a virtual machine 50 to 500 us: what ends sooner than that
// is better waited for awake. (A number of pauses would be another time on every processor.)
bool may_spin(int ranks) {
  static const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return ranks <= cores;
}
constexpr auto kSpinTime = std::chrono::microseconds(200);
constexpr int kSpinsPerLook = 64;  // pauses between two looks at the clock

[[noreturn]] void unusable(const std::string& what, int reason) {
  throw Error(ErrorCode::kEnvironment, "comm", base::str("shared memory: ", what, ": ", std::strerror(reason)));
}

}  // namespace

Domain::RankSlot& Domain::rank_slot(int rank) const { return reinterpret_cast<RankSlot*>(base_ + sizeof(Header))[rank]; }

GroupRank& Domain::slot(int group, int rank) const {
  std::byte* groups = base_ + sizeof(Header) + sizeof(RankSlot) * static_cast<size_t>(size_);
  return reinterpret_cast<GroupRank*>(groups)[static_cast<size_t>(group) * static_cast<size_t>(size_) + static_cast<size_t>(rank)];
}

Domain::Domain(const Store& store, const std::string& key, int rank, int size, std::chrono::milliseconds timeout)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      pidfds_(static_cast<size_t>(size), -1),
      pids_(static_cast<size_t>(size), 0),
      probe_(kProbe) {
  bytes_ = sizeof(Header) + sizeof(RankSlot) * static_cast<size_t>(size) +
           sizeof(GroupRank) * static_cast<size_t>(kMaxGroups) * static_cast<size_t>(size);
  meet(store, key);
  const bool readable = probe_peers();
  header_->refused.fetch_add(readable ? 0 : 1);
  header_->probed.fetch_add(1);
  notify();
  wait([&] { return header_->probed.load() == static_cast<uint32_t>(size_); }, "joining", key);
  if (header_->refused.load() > 0) {
    rank_slot(rank_).left = 1;
    throw Error(ErrorCode::kEnvironment, "comm",
                "shared memory: ranks may not read each other's memory (process_vm_readv is refused here)");
  }
}

// Ranks that are threads share one mapping, so that what orders them can be followed by address (ThreadSanitizer does).
struct Domain::Mapping {
  std::byte* base = nullptr;
  size_t bytes = 0;
  ~Mapping() {
    if (base) ::munmap(base, bytes);
  }

  static std::shared_ptr<Mapping> of(int fd, size_t bytes) {
    static std::mutex mutex;
    static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Mapping>> known;
    struct stat file {};
    if (::fstat(fd, &file) != 0) unusable("looking at the segment", errno);
    std::lock_guard lock(mutex);
    std::erase_if(known, [](const auto& item) { return item.second.expired(); });
    auto& entry = known[{file.st_dev, file.st_ino}];
    if (auto mapping = entry.lock()) return mapping;
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) unusable("mapping", errno);
    auto mapping = std::make_shared<Mapping>();
    mapping->base = static_cast<std::byte*>(address);
    mapping->bytes = bytes;
    entry = mapping;
    return mapping;
  }
};

void Domain::map(int fd) {
  mapping_ = Mapping::of(fd, bytes_);
  base_ = mapping_->base;
  header_ = reinterpret_cast<Header*>(base_);
}

void Domain::join_segment(const Store& store, const std::string& key, int* fd) {
  if (rank_ != 0) {
    const std::string path = store.get(key);
    if (path.empty()) throw Error(ErrorCode::kEnvironment, "comm", "shared memory: rank 0 could not make a segment");
    *fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (*fd < 0) unusable("opening the segment of rank 0", errno);
    return map(*fd);
  }
  try {
    // A memfd has no name: however the ranks end, nothing is left behind.
    *fd = ::memfd_create("deepspeed", MFD_CLOEXEC);
    if (*fd < 0) unusable("making a segment", errno);
    if (::ftruncate(*fd, static_cast<off_t>(bytes_)) != 0) unusable("sizing a segment", errno);
    map(*fd);
  } catch (const Error&) {
    store.set(key, "");
    throw;
  }
  store.set(key, base::str("/proc/", ::getpid(), "/fd/", *fd));
}

void Domain::meet(const Store& store, const std::string& key) {
  // Peers are not this process's children: allow them to read it where the system asks for that.
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  int fd = -1;
  std::string outcome = "ok";
  try {
    join_segment(store, key, &fd);
    rank_slot(rank_).probe_address = reinterpret_cast<uint64_t>(&probe_);
    rank_slot(rank_).pid = ::getpid();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kEnvironment) throw;  // a peer that is not there is no reason to talk to it in another way
    outcome = error.what();
  }
  // Through the store, as a rank without the segment could not tell its peers there: all go on, or none.
  const auto outcome_key = [&](int rank) { return base::str(key, "/", rank); };
  store.set(outcome_key(rank_), outcome);
  std::string refusal;
  for (int peer = 0; peer < size_ && refusal.empty(); ++peer) {
    const std::string theirs = store.get(outcome_key(peer));
    if (theirs != "ok") refusal = base::str("rank ", peer, " cannot join: ", theirs);
  }
  if (fd >= 0) ::close(fd);
  if (!refusal.empty()) {
    throw Error(ErrorCode::kEnvironment, "comm", base::str("shared memory: ", refusal));
  }
  for (int peer = 0; peer < size_; ++peer) {
    pids_[static_cast<size_t>(peer)] = rank_slot(peer).pid.load();
    if (pids_[static_cast<size_t>(peer)] == ::getpid()) continue;
    pidfds_[static_cast<size_t>(peer)] = static_cast<int>(::syscall(SYS_pidfd_open, pids_[static_cast<size_t>(peer)], 0));
  }
}

bool Domain::probe_peers() {
  try {
    for (int peer = 0; peer < size_; ++peer) {
      uint64_t value = 0;
      read(peer, &value, rank_slot(peer).probe_address.load(), sizeof value, "joining", "shm");
      if (value != kProbe) return false;
    }
  } catch (const Error&) {
    return false;
  }
  return true;
}

Domain::~Domain() {
  rank_slot(rank_).left = 1;
  notify();
  for (const int fd : pidfds_) {
    if (fd >= 0) ::close(fd);
  }
}

int Domain::take_group() {
  if (!free_groups_.empty()) {
    const int group = free_groups_.back();
    free_groups_.pop_back();
    return group;
  }
  if (groups_ == kMaxGroups) {
    throw Error(ErrorCode::kUsage, "comm", base::str("groups of ranks on one host: got ", groups_ + 1, ", allowed ", kMaxGroups));
  }
  return groups_++;
}

void Domain::read(int peer, void* out, uint64_t address, size_t bytes, const char* what, const std::string& group) const {
  if (pids_[static_cast<size_t>(peer)] == ::getpid()) {
    if (bytes > 0) std::memcpy(out, reinterpret_cast<const void*>(address), bytes);
    return;
  }
  auto* target = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const iovec local{target, bytes};
    const iovec remote{reinterpret_cast<void*>(address), bytes};
    const ssize_t got = ::process_vm_readv(pids_[static_cast<size_t>(peer)], &local, 1, &remote, 1, 0);
    if (got <= 0) {
      throw Error(ErrorCode::kPeerDied, "comm",
                  base::str(what, ": rank ", peer, " (process ", pids_[static_cast<size_t>(peer)],
                            ") cannot be read: ", got == 0 ? "nothing there" : std::strerror(errno), " (rank ", rank_, " of ", size_,
                            ", group '", group, "', shm)"));
    }
    target += got;
    address += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

bool Domain::same_process(int peer) const { return pids_[static_cast<size_t>(peer)] == ::getpid(); }

void Domain::add_region(int64_t id, std::byte* data, size_t bytes) {
  std::lock_guard lock(regions_mutex_);
  regions_[id] = {data, bytes};
}

void Domain::remove_region(int64_t id) {
  std::lock_guard lock(regions_mutex_);
  regions_.erase(id);
}

std::pair<int64_t, size_t> Domain::find_region(const void* data, size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  std::lock_guard lock(regions_mutex_);
  for (const auto& [id, region] : regions_) {
    if (begin >= region.data && begin + bytes <= region.data + region.bytes) return {id, static_cast<size_t>(begin - region.data)};
  }
  return {kOwnMemory, 0};
}

const std::byte* Domain::region_data(int64_t id, size_t offset) const {
  std::lock_guard lock(regions_mutex_);
  const auto found = regions_.find(id);
  return found == regions_.end() ? nullptr : found->second.data + offset;
}

void Domain::notify() const {
  header_->events.fetch_add(1, std::memory_order_seq_cst);
  if (header_->sleepers.load(std::memory_order_seq_cst) > 0) futex_wake(&header_->events);
}

std::string Domain::dead_peer() const {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (rank_slot(peer).left.load() != 0) return base::str("rank ", peer, " has left");
    const int fd = pidfds_[static_cast<size_t>(peer)];
    pollfd poll{fd, POLLIN, 0};
    if (fd >= 0 && ::poll(&poll, 1, 0) > 0) return base::str("rank ", peer, " (process ", pids_[static_cast<size_t>(peer)], ") has ended");
  }
  return "";
}

void Domain::wait(const std::function<bool()>& ready, const std::string& what, const std::string& group, std::chrono::microseconds nap) {
  using Clock = std::chrono::steady_clock;
  const auto progress = [&] {
    bool any = false;
    for (const auto& [owner, call] : progress_) any = call() || any;
    return any;
  };
  const auto fail = [&](ErrorCode code, const std::string& cause) {
    broken_ = true;
    throw Error(code, "comm", base::str(what, ": ", cause, " (rank ", rank_, " of ", size_, ", group '", group, "', shm)"));
  };
  if (broken_) fail(ErrorCode::kCommFailed, "this group failed before");
  const bool spins = may_spin(size_);
  const auto begin = Clock::now();
  auto checked = begin, awake = begin;
  for (unsigned spin = 1;; ++spin) {
    const uint32_t seen = header_->events.load(std::memory_order_seq_cst);
    if (ready()) return;
    if (progress()) {
      awake = Clock::now();
      continue;
    }
    if (spins && spin % kSpinsPerLook != 0) {
      __builtin_ia32_pause();
      continue;
    }
    const auto now = Clock::now();
    if (spins && now - awake < kSpinTime) continue;
    if (now - checked > std::chrono::milliseconds(20)) {
      checked = now;
      const std::string dead = dead_peer();
      // What it did before it went still counts.
      if (!dead.empty() && !ready() && !progress()) fail(ErrorCode::kPeerDied, dead);
      if (now - begin > timeout_) fail(ErrorCode::kCommTimeout, base::str("no answer from the other ranks in ", timeout_.count(), " ms"));
    }
    if (nap.count() > 0) {
      std::this_thread::sleep_for(nap);
      continue;
    }
    header_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (header_->events.load(std::memory_order_seq_cst) == seen) futex_wait(&header_->events, seen, std::chrono::milliseconds(25));
    header_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void Domain::add_progress(const void* owner, std::function<bool()> progress) { progress_.emplace_back(owner, std::move(progress)); }

void Domain::remove_progress(const void* owner) {
  std::erase_if(progress_, [&](const auto& item) { return item.first == owner; });
}

}  // namespace deepspeed::shm
