// A random order of 0 ... n-1 that takes no memory.
//
// The swap-or-not shuffle (Hoang, Morris and Rogaway, "An enciphering scheme based on a card shuffle", 2012): each of its rounds pairs every number x
// with key - x (mod n) and swaps the two or leaves them, by one bit of a hash of the pair. Each round is its own inverse, so the whole is a
// permutation, for any n.
#pragma once

#include <cstdint>

namespace deepspeed::data {

class Permutation {
 public:
  // `size` >= 1. Depends on nothing but its arguments, on any machine.
  Permutation(uint64_t size, uint64_t seed, uint64_t epoch);

  uint64_t operator()(uint64_t position) const;  // position < size; about 0.5 us

 private:
  uint64_t size_;
  uint64_t key_;
};

}  // namespace deepspeed::data
