// What a ZeRO stage means: which of the three kinds of state are cut over the ranks. There is one engine; stages differ in this alone.
#pragma once

namespace deepspeed::zero {

struct Policy {
  bool shard_parameters = false;  // a rank keeps its shard; the rest is gathered when an operator touches it
  bool shard_gradients = false;   // reduced to the owner after every backward; whole gradients do not outlive it
  bool shard_optimizer = false;   // a rank updates its shard only
};

// stage 0..3
constexpr Policy policy_of(int stage) { return {stage >= 3, stage >= 2, stage >= 1}; }

}  // namespace deepspeed::zero
