// Checksums of checkpoint files: CRC32C of each MiB (says where a file is damaged, checked for just the parts that are read) and XXH3-128 of the whole
// (what `xxhsum -c CHECKSUMS` checks).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::store {

constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

using Hash = std::array<std::byte, 16>;  // as XXH128_canonical_t: big endian

uint32_t crc32c(std::span<const std::byte> data);
Hash hash_of(std::span<const std::byte> data);
std::string hex_of(const Hash& hash);                   // 32 lower-case digits
bool hash_from_hex(std::string_view text, Hash* hash);  // false: not such digits

// Of a file that comes in pieces of any size.
class RunningChecksums {
 public:
  RunningChecksums();
  ~RunningChecksums();
  void add(std::span<const std::byte> data);
  uint64_t bytes() const { return bytes_; }
  std::vector<uint32_t> chunks() const;  // the last one may be short
  Hash hash() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::vector<uint32_t> chunks_;
  uint64_t bytes_ = 0;
  uint32_t open_ = 0;  // of the chunk that is not full
};

}  // namespace deepspeed::store
