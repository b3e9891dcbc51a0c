#include "base/trace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

namespace deepspeed::trace {
namespace {

void pass(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

int64_t own(const Recording& recording, Kind kind) { return recording.own_ns[static_cast<size_t>(kind)]; }

TEST(Trace, RecordsNothingWhileOff) {
  { Span span(Kind::kReduce, "reduce"); }
  record_flight("all_reduce 'x'", 8, 1, 2, 3);
  EXPECT_EQ(stop(), nullptr);
}

TEST(Trace, ASpansOwnTimeIsWithoutTheSpansInside) {
  start();
  {
    Span backward(Kind::kBackward, "backward");
    pass(2);
    Span wait(Kind::kWait, "wait");
    pass(6);
  }
  const auto recording = stop();
  ASSERT_EQ(recording->events.size(), 2u);
  EXPECT_EQ(recording->events[0].name, "wait");
  const Event& backward = recording->events[1];
  EXPECT_EQ(own(*recording, Kind::kBackward) + own(*recording, Kind::kWait), backward.end - backward.begin);
  EXPECT_GE(own(*recording, Kind::kWait), 6'000'000);
  EXPECT_EQ(recording->top_level_ns, backward.end - backward.begin);
}

TEST(Trace, TimeSinceAMarkLeavesOutSpans) {
  start();
  const Mark from = mark();
  {
    Span gather(Kind::kGather, "gather", 64);
    pass(4);
  }
  record_since(from, Kind::kForward, "forward");
  const auto recording = stop();
  const Event& forward = recording->events.back();
  EXPECT_EQ(own(*recording, Kind::kForward) + own(*recording, Kind::kGather), forward.end - forward.begin);
}

TEST(Trace, CollectivesAddUpByOperation) {
  start();
  record_flight("all_reduce 'loss'", 8, 100, 300, 400);
  record_flight("all_reduce 'norm'", 16, 1000, 1000, 1100);
  const auto recording = stop();
  const auto& totals = recording->collectives.at("all_reduce");
  EXPECT_EQ(totals.calls, 2);
  EXPECT_EQ(totals.bytes, 24u);
  EXPECT_EQ(totals.flight_ns, 400);
  EXPECT_EQ(totals.exposed_ns, 200);
}

TEST(Trace, ChromeEventsAreJson) {
  start();
  { Span span(Kind::kReduce, "gradients of \"unit\" \\ 3", 12); }
  const auto recording = stop();
  const auto events = nlohmann::json::parse(std::string("[").append(chrome_events(*recording, 5)).append("]"));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["args"]["name"], "rank 5");
  EXPECT_EQ(events[1]["name"], "gradients of \"unit\" \\ 3");
  EXPECT_EQ(events[1]["cat"], "reduce");
  EXPECT_EQ(events[1]["pid"], 5);
  EXPECT_EQ(events[1]["args"]["bytes"], 12);
}

}  // namespace
}  // namespace deepspeed::trace
