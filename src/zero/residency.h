// Which sharded units hold all their values now (stage 3).
//
// States of a unit:
//
//   released --gather, issued--> in flight --first touch waits--> whole --release--> released
//
// The first training pass records the order in which units are touched; later passes gather ahead along that trace, within
// stage3_prefetch_bucket_size elements in flight and stage3_max_live_parameters whole ones. A pass that leaves the trace (other control flow, evaluation)
// goes on by gathering on demand and becomes the next trace. Every rank takes the same decisions, as they depend on the trace and the sizes alone.
// On-demand gathers outside a trace first compare unit and position over the ranks: diverging ranks get E2002 instead of wrong data.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "deepspeed/comm.h"
#include "deepspeed/config.h"
#include "zero/interception.h"
#include "zero/unit.h"

namespace deepspeed::zero {

struct ResidencyStatistics {
  int64_t gathers = 0;     // all_gathers issued
  int64_t prefetched = 0;  // of these, ahead of the touch
  int64_t diverged = 0;    // passes that left the trace
  int64_t peak_live = 0;   // elements
};

// One per engine; used from the engine's thread and from backward (one at a time). `units` must outlive it.
class Residency final : public Gatherer {
 public:
  Residency(std::vector<Unit*> sharded_units, std::shared_ptr<Communicator> communicator, const Config::Zero& limits);
  ~Residency() override;

  void make_whole(Unit* const* units, size_t count) override;

  // Backward of this pass begins and ends: touches are recorded although gradient mode is off then.
  void begin_backward() { in_backward_ = true; }
  void end_backward();

  // Not touched again in this pass: frees it if nothing else asks for it.
  void release(Unit* unit);
  // The shards have changed (or the pass is over): nothing gathered is valid any more.
  void release_all();
  // Pinned units are whole and stay so until unpinned (GatheredParameters).
  void pin(Unit* unit);
  void unpin(Unit* unit);

  int64_t live_elements() const { return live_elements_; }
  const ResidencyStatistics& statistics() const { return statistics_; }

 private:
  struct State {
    std::unique_ptr<PendingCollective> pending;  // gather in flight
    uint64_t last_use = 0;
    int pins = 0;
  };

  State& state_of(const Unit* unit) { return states_[static_cast<size_t>(unit->id())]; }
  void start_gather(Unit* unit);
  void finish_gather(Unit* unit);
  void compare_ranks(const Unit* unit);
  void record(Unit* unit);
  void prefetch();
  void make_room(int64_t elements, Unit* const* keep, size_t keep_count);
  void drop_far_uses(Unit* const* keep, size_t keep_count);
  int64_t distance_to_next_use(const Unit* unit) const;

  std::vector<Unit*> units_;
  std::vector<State> states_;  // by unit id
  std::shared_ptr<Communicator> communicator_;
  Config::Zero limits_;
  int64_t live_elements_ = 0;
  int64_t in_flight_elements_ = 0;
  uint64_t clock_ = 0;
  bool in_backward_ = false;

  std::vector<Unit*> trace_;  // of the last complete pass
  std::vector<Unit*> pass_;   // of this pass so far
  bool following_ = false;    // this pass has equalled the trace so far
  ResidencyStatistics statistics_;
};

}  // namespace deepspeed::zero
