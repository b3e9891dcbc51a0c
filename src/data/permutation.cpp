#include "data/permutation.h"

namespace deepspeed::data {
namespace {

constexpr uint64_t kRounds = 64;  // several times the bits of any number of rows

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit moves every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t epoch) : size_(size), key_(mix(mix(seed) ^ epoch)) {}

uint64_t Permutation::operator()(uint64_t position) const {
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t round_key = mix(key_ + round);
    const uint64_t pivot = round_key % size_;
    const uint64_t partner = pivot >= position ? pivot - position : pivot + (size_ - position);
    const uint64_t larger = position > partner ? position : partner;
    if (mix(round_key ^ larger) & 1) position = partner;
  }
  return position;
}

}  // namespace deepspeed::data
