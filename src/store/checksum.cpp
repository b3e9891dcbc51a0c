#include "store/checksum.h"

#include <isa-l/crc.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace deepspeed::store {
namespace {

static_assert(sizeof(XXH128_canonical_t) == sizeof(Hash));

// The library leaves both complements to its caller and takes lengths as int; pieces here are at most a chunk.
uint32_t extend(uint32_t crc, std::span<const std::byte> data) {
  auto* bytes = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(data.data()));  // it only reads
  return ~crc32_iscsi(bytes, static_cast<int>(data.size()), ~crc);
}

Hash canonical(XXH128_hash_t value) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, value);
  Hash hash;
  std::memcpy(hash.data(), bytes.digest, hash.size());
  return hash;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> data) {
  DS_CHECK(data.size() <= kChunkBytes, data.size());
  return extend(0, data);
}

Hash hash_of(std::span<const std::byte> data) { return canonical(XXH3_128bits(data.data(), data.size())); }

std::string hex_of(const Hash& hash) {
  std::string text;
  for (const std::byte value : hash) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[std::to_integer<unsigned>(value) >> 4];
    text += kDigits[std::to_integer<unsigned>(value) & 15];
  }
  return text;
}

bool hash_from_hex(std::string_view text, Hash* hash) {
  if (text.size() != 2 * hash->size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return false;
    const auto value = static_cast<std::byte>(digit ? c - '0' : c - 'a' + 10);
    (*hash)[i / 2] = i % 2 == 0 ? value << 4 : (*hash)[i / 2] | value;
  }
  return true;
}

struct RunningChecksums::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

RunningChecksums::RunningChecksums() : state_(std::make_unique<State>()) {
  DS_CHECK(state_->xxh != nullptr, bytes_);
  XXH3_128bits_reset(state_->xxh);
}

RunningChecksums::~RunningChecksums() = default;

void RunningChecksums::add(std::span<const std::byte> data) {
  while (!data.empty()) {
    const uint64_t room = kChunkBytes - bytes_ % kChunkBytes;
    const auto piece = data.first(std::min<uint64_t>(data.size(), room));
    XXH3_128bits_update(state_->xxh, piece.data(), piece.size());
    open_ = extend(open_, piece);
    bytes_ += piece.size();
    if (bytes_ % kChunkBytes == 0) chunks_.push_back(std::exchange(open_, 0));
    data = data.subspan(piece.size());
  }
}

std::vector<uint32_t> RunningChecksums::chunks() const {
  auto all = chunks_;
  if (bytes_ % kChunkBytes != 0) all.push_back(open_);
  return all;
}

Hash RunningChecksums::hash() const { return canonical(XXH3_128bits_digest(state_->xxh)); }

}  // namespace deepspeed::store
