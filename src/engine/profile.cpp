// A run's recordings, put together: the trace file and the table.
#include "deepspeed/profile.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "base/trace.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"

namespace deepspeed {
namespace {

using Json = nlohmann::json;

std::string line(const char* format, auto... values) {
  char text[200];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// A rank's totals, as they travel to rank 0.
Json totals_of(const trace::Recording& recording) {
  Json totals;
  int64_t named = 0;
  for (size_t kind = 0; kind < trace::kKinds; ++kind) {
    totals["phases"].push_back(static_cast<double>(recording.own_ns[kind]) / 1e6);
    named += recording.own_ns[kind];
  }
  totals["all"] = static_cast<double>(recording.end - recording.begin) / 1e6;
  totals["other"] = static_cast<double>(recording.end - recording.begin - named) / 1e6;
  totals["left_out"] = recording.left_out;
  totals["collectives"] = Json::object();
  for (const auto& [name, c] : recording.collectives) {
    totals["collectives"][name] = {
        {"calls", c.calls}, {"bytes", c.bytes}, {"busy", c.busy_ns}, {"flight", c.flight_ns}, {"exposed", c.exposed_ns}};
  }
  return totals;
}

std::string phase_lines(const std::vector<Json>& ranks, double steps) {
  std::string out = line("%-12s %12s %8s   %s\n", "phase", "ms per step", "share", "least and most of all ranks");
  const auto row = [&](const char* name, auto value) {
    double sum = 0, all = 0, least = 1e300, most = 0;
    for (const auto& rank : ranks) {
      const double mine = value(rank);
      sum += mine;
      all += rank["all"].get<double>();
      least = std::min(least, mine);
      most = std::max(most, mine);
    }
    const double count = static_cast<double>(ranks.size());
    out += line("%-12s %12.3f %7.1f%%   %.3f .. %.3f\n", name, sum / count / steps, all > 0 ? 100 * sum / all : 0, least / steps,
                most / steps);
  };
  for (size_t kind = 0; kind < trace::kKinds; ++kind) {
    row(trace::name_of(static_cast<trace::Kind>(kind)), [&](const Json& rank) { return rank["phases"][kind].get<double>(); });
  }
  row("other", [](const Json& rank) { return rank["other"].get<double>(); });
  return out;
}

// Of rank 0: the calls and bytes are the same on all.
std::string collective_lines(const Json& rank, double steps) {
  if (rank["collectives"].empty()) return "";
  std::string out = line("%-16s %14s %12s %8s %10s\n", "collective", "calls per step", "MB per step", "GB/s", "overlapped");
  for (const auto& [name, c] : rank["collectives"].items()) {
    const double bytes = c["bytes"], flight = c["flight"], exposed = c["exposed"], busy = c["busy"];
    const double working = busy > 0 ? busy : exposed;
    out += line("%-16s %14.1f %12.3f %8.2f %9.1f%%\n", name.c_str(), c["calls"].get<double>() / steps, bytes / 1e6 / steps,
                working > 0 ? bytes / working : 0.0, flight > 0 ? 100 * (1 - exposed / flight) : 0.0);
  }
  return out;
}

}  // namespace

Profiler::Profiler() { trace::start(); }

Profiler::~Profiler() { trace::stop(); }

std::string Profiler::finish(Communicator& communicator, const std::string& chrome_trace, int64_t steps) {
  const auto recording = trace::stop();
  if (!recording) throw Error(ErrorCode::kUsage, "profiler", "finish: got a second call, allowed one");
  const auto probe = at::empty({0});
  std::ofstream file;
  const bool leads = communicator.rank() == 0;
  std::string error;
  if (leads && !chrome_trace.empty()) {
    file.open(chrome_trace);
    file << "[";
    if (!file) error = base::str("trace file ", chrome_trace, ": cannot be written");
  }
  comm::agree_on_success(communicator, error, ErrorCode::kFile, "profiler", "finish", probe);
  std::vector<Json> totals;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const bool mine = rank == communicator.rank();
    totals.push_back(
        Json::parse(comm::broadcast_text(communicator, mine ? totals_of(*recording).dump() : "", rank, "profile totals", probe)));
    if (chrome_trace.empty()) continue;
    const std::string events =
        comm::broadcast_text(communicator, mine ? trace::chrome_events(*recording, rank) : "", rank, "profile events", probe);
    if (leads) file << (rank == 0 ? "" : ",\n") << events;
  }
  if (!leads) return "";
  if (!chrome_trace.empty()) {
    file << "]\n";
    file.close();
    if (!file) throw Error(ErrorCode::kFile, "profiler", base::str("trace file ", chrome_trace, ": cannot be written"));
  }
  const double count = static_cast<double>(std::max<int64_t>(steps, 1));
  std::string table = phase_lines(totals, count) + collective_lines(totals[0], count);
  if (totals[0]["left_out"].get<int64_t>() > 0) {
    table += base::str("the trace holds the first ", trace::Recording::kMaxEvents, " events of a rank; ",
                       totals[0]["left_out"].get<int64_t>(), " more are counted in the table only\n");
  }
  return table;
}

}  // namespace deepspeed
