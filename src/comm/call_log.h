// What a group has been asked to do: names, sizes and a running hash, for diagnosis and for comparing ranks.
#pragma once

#include <cstdint>
#include <string>

namespace deepspeed::comm {

// One per communicator; not thread safe.
class CallLog {
 public:
  // Notes a call and returns its text, "all_gather 'unit 3' call 17, 4096 bytes".
  std::string note(const char* operation, const std::string& tag, uint64_t bytes);

  uint64_t hash() const { return hash_; }
  uint64_t calls() const { return calls_; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t hash_ = 14695981039346656037ull;  // FNV-1a over operation, tag and size
  uint64_t calls_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace deepspeed::comm
