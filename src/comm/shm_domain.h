// Ranks of one host that talk through shared memory.
//
// A control segment (a memfd: it has no name that could be left behind) holds, for each group and rank, a ring of descriptors: what the rank calls now and
// where its data lies. Peers read the data straight out of the caller's memory (process_vm_readv, or a plain copy between threads), so a byte
// is copied once and nothing is staged. Draw of the segment:
//
//   Header | ranks: pid, left, probe ... | group 0: rank 0 {posted, done, ring[kRing]}, rank 1 ... | group 1: ...
//
// `posted` counts the calls a rank has described, `done` those whose data it has taken from all peers. A buffer may be reused when every peer's
// `done` has reached the call. Waiting spins for a moment, then sleeps on one futex word that every change wakes; it watches the deadline and,
// by pidfd, whether a peer still lives.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace deepspeed::comm {

inline constexpr int kMaxGroups = 32;
inline constexpr uint64_t kRing = 64;        // calls in flight per group
inline constexpr size_t kInlineBytes = 256;  // data up to this size travels in the descriptor

struct alignas(64) Descriptor {
  uint64_t hash = 0;     // of operation, tag and size: equal on all ranks
  uint64_t address = 0;  // of the data in the owner's memory; 0: inline
  uint64_t bytes = 0;
  char what[112] = {};  // operation and tag, for messages
  std::byte data[kInlineBytes];
};

struct alignas(64) GroupRank {
  std::atomic<uint64_t> posted;
  alignas(64) std::atomic<uint64_t> done;
  Descriptor ring[kRing];
};

// One rank's view of the segment. Destroying it tells the peers that this rank has left. Driven by one thread.
class ShmDomain {
 public:
  // Calls given to the constructor: the store that ranks meet in.
  struct Store {
    std::function<void(const std::string& key, const std::string& value)> set;
    std::function<std::string(const std::string& key)> get;  // waits for the key, with a deadline
  };

  // Collective. Throws Error(kEnvironment) on all ranks when any pair of ranks cannot read each other's memory.
  ShmDomain(const Store& store, const std::string& key, int rank, int size, std::chrono::milliseconds timeout);
  ~ShmDomain();
  ShmDomain(const ShmDomain&) = delete;
  ShmDomain& operator=(const ShmDomain&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  GroupRank& slot(int group, int rank) const;
  // A group's place in the segment, the same on all ranks as long as they take and free them in one order. Throws Error(kUsage) past kMaxGroups.
  int take_group();
  void free_group(int group) { free_groups_.push_back(group); }

  // out[bytes] = bytes of rank `peer`'s memory. Throws Error(kPeerDied) beginning with `what`.
  void read(int peer, void* out, uint64_t address, size_t bytes, const char* what, const std::string& group) const;

  // Something in the segment changed: wakes the peers that sleep.
  void notify() const;
  // Calls `ready` until it returns true. Throws Error kPeerDied or kCommTimeout beginning with `what`; after such an error every later wait fails too.
  void wait(const std::function<bool()>& ready, const std::string& what, const std::string& group);

  // Registered functions are called while waiting, so that other groups' calls go on meanwhile (no rank may hold another up by its order of waits).
  void add_progress(const void* owner, std::function<bool()> progress);
  void remove_progress(const void* owner);

 private:
  struct Header;
  struct RankSlot;

  RankSlot& rank_slot(int rank) const;
  void map(int fd);
  void join_segment(const Store& store, const std::string& key, int* fd);
  void meet(const Store& store, const std::string& key);
  bool probe_peers();
  std::string dead_peer() const;  // "" while all live

  int rank_, size_;
  std::chrono::milliseconds timeout_;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  Header* header_ = nullptr;
  std::vector<int> pidfds_;  // by rank; -1: own process, or not needed
  std::vector<int> pids_;
  int groups_ = 0;
  std::vector<int> free_groups_;
  bool broken_ = false;
  uint64_t probe_ = 0;  // what peers read to test that they can
  std::vector<std::pair<const void*, std::function<bool()>>> progress_;
};

}  // namespace deepspeed::comm
