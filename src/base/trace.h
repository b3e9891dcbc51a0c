// Where the time of a run goes: named spans of one thread, with bytes where data moves.
//
// Off (the usual case) a span costs the test of one thread-local pointer.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deepspeed::trace {

// kReduce: sums over ranks; kGather: parameters and other data made whole; kWait: nothing to do until a peer has come so far.
enum class Kind : uint8_t { kForward, kBackward, kOptimizer, kGather, kReduce, kWait };
inline constexpr size_t kKinds = 6;
const char* name_of(Kind kind);

struct Event {
  Kind kind;
  std::string name;
  int64_t begin = 0, end = 0;  // ns of the steady clock
  uint64_t bytes = 0;
};

// Of one collective operation ("reduce_scatter").
struct CollectiveTotals {
  int64_t calls = 0;
  uint64_t bytes = 0;      // handed in by this rank
  int64_t busy_ns = 0;     // this rank moved or summed data
  int64_t flight_ns = 0;   // from the call to its end
  int64_t exposed_ns = 0;  // of these, with the caller waiting
};

struct Recording {
  static constexpr size_t kMaxEvents = 1'000'000;
  int64_t begin = 0, end = 0;
  std::vector<Event> events;
  int64_t left_out = 0;                     // events past kMaxEvents; totals go on counting
  std::array<int64_t, kKinds> own_ns = {};  // without the spans inside
  std::map<std::string, CollectiveTotals> collectives;

  std::vector<int64_t> open;  // by nesting: ns of the spans inside, so far
  int64_t top_level_ns = 0;   // in finished spans that are in no other
};

int64_t now();

// This thread's recording; nullptr while off.
extern thread_local Recording* active;

void start();
// Ends this thread's recording and hands it over; nullptr when there is none.
std::unique_ptr<Recording> stop();

class Span {
 public:
  Span(Kind kind, std::string_view name, uint64_t bytes = 0) {
    if (active) begin(kind, name, bytes);
  }
  ~Span() {
    if (begin_ != 0) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void begin(Kind kind, std::string_view name, uint64_t bytes);
  void end();

  Kind kind_ = Kind::kWait;
  std::string name_;
  uint64_t bytes_ = 0;
  int64_t begin_ = 0;
};

// A span that nobody could open when it began: all of this thread's time since `from` that is in no other span. Returns the mark for the next.
struct Mark {
  int64_t at = 0;
  int64_t top_level_ns = 0;
};
Mark mark();
void record_since(const Mark& from, Kind kind, std::string_view name);

// The life of a collective: called, waited for, done. `operation` ends at the first space.
void record_flight(std::string_view operation, uint64_t bytes, int64_t called, int64_t wait_begin, int64_t done);
void record_busy(std::string_view operation, int64_t busy_ns);

// Chrome's trace event format (chrome://tracing, Perfetto): the events of one rank, comma separated, without the brackets around all.
std::string chrome_events(const Recording& recording, int rank);

}  // namespace deepspeed::trace
