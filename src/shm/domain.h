// Ranks of one host that talk through shared memory.
//
// A control segment (a memfd: it has no name that could be left behind) holds, for each group and rank, a ring of descriptors: what the rank calls now and
// where its data lies. Peers read the data straight out of the caller's memory (process_vm_readv, or a plain copy between threads), so a byte
// is copied once and nothing is staged. Draw of the segment:
//
//   Header | ranks: pid, left, probe ... | group 0: rank 0 {posted, done, ring[kRing]}, rank 1 ... | group 1: ...
//
// Data inside a region that all ranks map is not copied at all: peers read it in place.
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
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace deepspeed::shm {

inline constexpr int kMaxGroups = 32;
inline constexpr uint64_t kRing = 64;        // calls in flight per group
inline constexpr size_t kInlineBytes = 256;  // data up to this size travels in the descriptor

// Where a call's data lies: in the descriptor, in the caller's own memory, or (from 0) in a region that all ranks map.
inline constexpr int64_t kInline = -2, kOwnMemory = -1;

struct alignas(64) Descriptor {
  uint64_t hash = 0;     // of operation, tag and size: equal on all ranks
  uint64_t address = 0;  // of the data in the owner's memory, or its place in `region`
  int64_t region = kOwnMemory;
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
class Domain {
 public:
  // Calls given to the constructor: the store that ranks meet in.
  struct Store {
    std::function<void(const std::string& key, const std::string& value)> set;
    std::function<std::string(const std::string& key)> get;  // waits for the key, with a deadline
  };

  // Collective. Throws Error(kEnvironment) on all ranks when any pair of ranks cannot read each other's memory.
  Domain(const Store& store, const std::string& key, int rank, int size, std::chrono::milliseconds timeout);
  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  GroupRank& slot(int group, int rank) const;
  // A group's place in the segment, the same on all ranks as long as they take and free them in one order. Throws Error(kUsage) past kMaxGroups.
  int take_group();
  void free_group(int group) { free_groups_.push_back(group); }

  // out[bytes] = bytes of rank `peer`'s memory. Throws Error(kPeerDied) beginning with `what`.
  void read(int peer, void* out, uint64_t address, size_t bytes, const char* what, const std::string& group) const;

  // Whether rank `peer` is a thread of this process, so that its addresses are this rank's too.
  bool same_process(int peer) const;

  // Regions that all ranks map (src/shm/region.h), under ids that are the same on all ranks. Any thread.
  int64_t next_region() { return regions_made_++; }
  void add_region(int64_t id, std::byte* data, size_t bytes);
  void remove_region(int64_t id);
  // Which region holds data[bytes], and where in it: {kOwnMemory, 0} when none does.
  std::pair<int64_t, size_t> find_region(const void* data, size_t bytes) const;
  // This rank's address of a place in a region; nullptr when this rank has let go of it.
  const std::byte* region_data(int64_t id, size_t offset) const;

  // Something in the segment changed: wakes the peers that sleep.
  void notify() const;
  // Calls `ready` until it returns true. Throws Error kPeerDied or kCommTimeout beginning with `what`; after such an error every later wait fails too.
  // `nap`: above 0 for what does not come through the segment: then it looks again that often instead of sleeping until a notify().
  void wait(const std::function<bool()>& ready, const std::string& what, const std::string& group,
            std::chrono::microseconds nap = std::chrono::microseconds(0));

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
  struct Mapping;
  std::shared_ptr<Mapping> mapping_;  // one for all ranks of this process
  std::byte* base_ = nullptr;         // its memory
  size_t bytes_ = 0;
  Header* header_ = nullptr;
  std::vector<int> pidfds_;  // by rank; -1: own process, or not needed
  std::vector<int> pids_;
  int groups_ = 0;
  std::vector<int> free_groups_;
  bool broken_ = false;
  uint64_t probe_ = 0;  // what peers read to test that they can
  std::vector<std::pair<const void*, std::function<bool()>>> progress_;
  struct Place {
    std::byte* data;
    size_t bytes;
  };
  mutable std::mutex regions_mutex_;  // tensors inside a region may end on any thread
  std::map<int64_t, Place> regions_;
  int64_t regions_made_ = 0;
};

}  // namespace deepspeed::shm
