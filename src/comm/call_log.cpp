#include "comm/call_log.h"

#include <string_view>

#include "base/text.h"

namespace deepspeed::comm {
namespace {

uint64_t mix(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace

std::string CallLog::note(const char* operation, const std::string& tag, uint64_t bytes) {
  hash_ = mix(mix(hash_, operation), tag);
  hash_ = mix(hash_, std::string_view(reinterpret_cast<const char*>(&bytes), sizeof bytes));
  bytes_ += bytes;
  return base::str(operation, " '", tag, "' call ", ++calls_, ", ", bytes, " bytes");
}

}  // namespace deepspeed::comm
