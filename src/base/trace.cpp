#include "base/trace.h"

#include <chrono>
#include <cstdio>

#include "base/text.h"

namespace deepspeed::trace {

thread_local Recording* active = nullptr;

const char* name_of(Kind kind) {
  static constexpr const char* kNames[kKinds] = {"forward", "backward", "optimizer", "gather", "reduce", "wait"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void start() {
  if (active) return;
  active = new Recording;
  active->begin = now();
}

std::unique_ptr<Recording> stop() {
  std::unique_ptr<Recording> recording(active);
  active = nullptr;
  if (recording) recording->end = now();
  return recording;
}

namespace {

void add_event(Kind kind, std::string_view name, int64_t begin, int64_t end, uint64_t bytes) {
  if (active->events.size() >= Recording::kMaxEvents) {
    ++active->left_out;
    return;
  }
  active->events.push_back({kind, std::string(name), begin, end, bytes});
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out;
}

std::string operation_of(std::string_view text) { return std::string(text.substr(0, text.find(' '))); }

}  // namespace

void Span::begin(Kind kind, std::string_view name, uint64_t bytes) {
  kind_ = kind;
  name_ = name;
  bytes_ = bytes;
  begin_ = now();
  active->open.push_back(0);
}

void Span::end() {
  if (!active || active->open.empty()) return;  // the recording ended inside
  const int64_t end = now(), length = end - begin_;
  const int64_t inside = active->open.back();
  active->open.pop_back();
  (active->open.empty() ? active->top_level_ns : active->open.back()) += length;
  active->own_ns[static_cast<size_t>(kind_)] += length - inside;
  add_event(kind_, name_, begin_, end, bytes_);
}

Mark mark() { return active ? Mark{now(), active->top_level_ns} : Mark{}; }

void record_since(const Mark& from, Kind kind, std::string_view name) {
  if (!active) return;
  const Mark begin = from.at < active->begin ? Mark{active->begin, 0} : from;
  const int64_t end = now();
  active->own_ns[static_cast<size_t>(kind)] += end - begin.at - (active->top_level_ns - begin.top_level_ns);
  add_event(kind, name, begin.at, end, 0);
}

void record_flight(std::string_view operation, uint64_t bytes, int64_t called, int64_t wait_begin, int64_t done) {
  if (!active || called == 0) return;
  CollectiveTotals& totals = active->collectives[operation_of(operation)];
  ++totals.calls;
  totals.bytes += bytes;
  totals.flight_ns += done - called;
  totals.exposed_ns += done - wait_begin;
}

void record_busy(std::string_view operation, int64_t busy_ns) {
  if (active) active->collectives[operation_of(operation)].busy_ns += busy_ns;
}

std::string chrome_events(const Recording& recording, int rank) {
  std::string out = base::str("{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":", rank, ",\"args\":{\"name\":\"rank ", rank, "\"}}");
  char times[96];
  for (const Event& event : recording.events) {
    std::snprintf(times, sizeof times, "\"ts\":%.3f,\"dur\":%.3f", static_cast<double>(event.begin) / 1e3,
                  static_cast<double>(event.end - event.begin) / 1e3);
    out += base::str(",\n{\"name\":\"", escaped(event.name), "\",\"cat\":\"", name_of(event.kind), "\",\"ph\":\"X\",", times,
                     ",\"pid\":", rank, ",\"tid\":0,\"args\":{\"bytes\":", event.bytes, "}}");
  }
  return out;
}

}  // namespace deepspeed::trace
