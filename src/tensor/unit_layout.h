// Where each parameter lies in the flat buffer of its unit. No data, no torch: the same arithmetic serves training and checkpoints.
//
//   unit    |p0 ......|gap|p1 ..|gap|p2 .........|p3 ...|pad|     elements; every parameter starts on a multiple of kAlignment
//   shards  |--- rank 0 ---|--- rank 1 ---|--- rank 2 ------|     equal, each a multiple of kAlignment
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepspeed::tensor {

// 128 bytes in fp32, 64 in bf16: a cache line either way, and the layout does not depend on the precision.
inline constexpr int64_t kAlignment = 32;

struct Slot {
  std::string name;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t offset = 0;  // elements from the start of the unit
};

struct Range {
  int64_t begin = 0, end = 0;  // elements, half open
  int64_t size() const { return end - begin; }
};

class UnitLayout {
 public:
  UnitLayout() = default;
  // Slots are placed in the given order; offsets are assigned here.
  UnitLayout(std::vector<Slot> slots, int world_size);

  const std::vector<Slot>& slots() const { return slots_; }
  int64_t elements() const { return elements_; }       // of the parameters, without gaps
  int64_t padded_elements() const { return padded_; }  // of the whole buffer
  int64_t shard_elements() const { return shard_; }
  Range shard(int rank) const { return {rank * shard_, (rank + 1) * shard_}; }
  const std::vector<Range>& gaps() const { return gaps_; }  // between and after the parameters

 private:
  std::vector<Slot> slots_;
  int64_t elements_ = 0, padded_ = 0, shard_ = 0;
  std::vector<Range> gaps_;
};

}  // namespace deepspeed::tensor
