#include "launcher/rank_plan.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "deepspeed/error.h"
#include "launcher/cores.h"

namespace deepspeed::launcher {
namespace {

using base::str;
using Map = base::Environment::Map;

constexpr int kMostRanks = 4096;  // of one machine

[[noreturn]] void usage(const std::string& text) { throw Error(ErrorCode::kUsage, "launcher", text); }

// Adds the user's --env entries. The variables that the launcher itself sets are not up for choice.
void add_user_entries(const std::vector<std::string>& entries, Map& variables) {
  static const std::set<std::string> kOurs = {"RANK",       "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                              "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"};
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) usage(str("--env: got \"", entry, "\", allowed NAME=VALUE"));
    const std::string name = entry.substr(0, equals);
    if (kOurs.count(name)) usage(str("--env: got ", name, ", which the launcher sets itself, allowed other names"));
    if (name == "MASTER_ADDR" || name == "MASTER_PORT")
      usage(str("--env: got ", name, ", allowed other names; use --master_addr and --master_port"));
    variables[name] = entry.substr(equals + 1);
  }
}

// What ranks share. Traces of an outer torchrun would mislead torch about who runs the store.
Map common_environment(const LaunchOptions& options, const base::Environment& environment, int ranks, int master_port) {
  Map variables = environment.all();
  for (auto entry = variables.begin(); entry != variables.end();) {
    entry = entry->first.rfind("TORCHELASTIC_", 0) == 0 ? variables.erase(entry) : std::next(entry);
  }
  add_user_entries(options.environment, variables);
  variables["MASTER_ADDR"] =
      options.master_address.empty() ? environment.text("MASTER_ADDR").value_or("127.0.0.1") : options.master_address;
  variables["MASTER_PORT"] = str(master_port);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = variables["LOCAL_SIZE"] = str(ranks);
  variables["CROSS_RANK"] = "0";
  variables["CROSS_SIZE"] = "1";
  return variables;
}

}  // namespace

int number_of_ranks(const LaunchOptions& options, const Machine& machine) {
  if (options.ranks < 0 || options.ranks > kMostRanks) usage(str("--num_ranks: got ", options.ranks, ", allowed 1 to ", kMostRanks));
  return options.ranks > 0 ? options.ranks : std::max(1, machine.cuda_devices);
}

RankPlan make_rank_plan(const LaunchOptions& options, const Machine& machine, const base::Environment& environment, int master_port) {
  const int ranks = number_of_ranks(options, machine);
  if (!options.core_list.empty() && !options.bind_cores) {
    usage("--bind_core_list: got a list without --bind_cores_to_rank, allowed both together");
  }
  Map variables = common_environment(options, environment, ranks, master_port);
  const Program program = find_program(options.program, options.kind, base::Environment(variables));

  std::vector<std::vector<int>> cores(ranks);
  int threads = std::max(1, machine.core_budget / ranks);
  if (options.bind_cores) {
    cores = split_cores(options.core_list.empty() ? machine.cores : parse_core_list(options.core_list), ranks);
    threads = static_cast<int>(cores[0].size());
  }
  const bool own_threads = variables.count("OMP_NUM_THREADS") && !variables["OMP_NUM_THREADS"].empty();
  if (!own_threads) variables["OMP_NUM_THREADS"] = str(threads);

  RankPlan plan;
  for (int rank = 0; rank < ranks; ++rank) {
    RankProcess process;
    process.rank = rank;
    process.cores = cores[rank];
    process.command = program.command;
    if (program.is_python && options.local_rank_argument) process.command.push_back(str("--local_rank=", rank));
    process.command.insert(process.command.end(), options.arguments.begin(), options.arguments.end());
    variables["RANK"] = variables["LOCAL_RANK"] = str(rank);
    for (const auto& [name, value] : variables) process.environment.push_back(name + "=" + value);
    plan.ranks.push_back(std::move(process));
  }

  std::string reason;
  if (options.ranks == 0) {
    reason = machine.cuda_devices > 0 ? str(" (one per CUDA device, by ", machine.device_source, ")")
                                      : str(" (no CUDA device by ", machine.device_source, "; more with --num_ranks)");
  }
  plan.summary =
      str(ranks, ranks == 1 ? " rank" : " ranks", reason, ", master ", variables["MASTER_ADDR"], ":", master_port,
          ", OMP_NUM_THREADS=", variables["OMP_NUM_THREADS"], own_threads ? " (as set)" : "", options.bind_cores ? ", bound to cores" : "");
  if (machine.cuda_devices > 0 && ranks > machine.cuda_devices) {
    plan.warning = str(ranks, " ranks on ", machine.cuda_devices, " CUDA devices (", machine.device_source,
                       "): ranks without a device of their own may fail");
  }
  return plan;
}

}  // namespace deepspeed::launcher
