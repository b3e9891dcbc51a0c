#include "launcher/rank_info.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/text.h"
#include "deepspeed/error.h"
#include "launcher/slurm_list.h"

namespace deepspeed::launcher {
namespace {

using base::Environment;
using base::str;

constexpr int64_t kMostRanks = 1 << 24;

// The variables of one launcher. Of several names for the same thing the first that is set counts.
struct Family {
  const char* source;
  const char* rank;
  const char* world_size;
  std::vector<const char*> local_rank;
  std::vector<const char*> local_world_size;
};

const std::vector<Family>& families() {
  static const std::vector<Family> list = {
      {"environment", "RANK", "WORLD_SIZE", {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"}},
      {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"OMPI_COMM_WORLD_LOCAL_RANK"}, {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {"mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", {"MV2_COMM_WORLD_LOCAL_RANK"}, {"MV2_COMM_WORLD_LOCAL_SIZE"}},
      {"mpirun", "PMI_RANK", "PMI_SIZE", {"MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"}, {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}},
  };
  return list;
}

// A value together with the variable it came from, for messages.
struct Found {
  std::string name;
  int value = 0;
};

std::optional<Found> find(const Environment& environment, const std::vector<const char*>& names, int64_t least, int64_t most = kMostRanks) {
  for (const char* name : names) {
    if (const auto value = environment.integer(name, least, most)) return Found{name, static_cast<int>(*value)};
  }
  return std::nullopt;
}

[[noreturn]] void fail(const std::string& variable, const std::string& got, const std::string& allowed) {
  throw Error(ErrorCode::kEnvironment, "launcher", str("environment variable ", variable, ": got ", got, ", allowed ", allowed));
}

bool any_set(const Environment& environment, const std::vector<const char*>& names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return environment.has(name); });
}

bool is_present(const Environment& environment, const Family& family) {
  return environment.has(family.rank) || environment.has(family.world_size);
}

bool is_loopback(const std::string& address) { return address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0; }

// Slurm's name for the host of rank 0, if it tells one.
std::optional<std::string> slurm_master(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const auto list = environment.text(name)) return first_slurm_host(*list, name);
  }
  return std::nullopt;
}

std::optional<Found> slurm_local_world_size(const Environment& environment) {
  const int node = static_cast<int>(environment.integer("SLURM_NODEID", 0, kMostRanks).value_or(0));
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    // One number without a list means every node.
    if (const auto same = base::parse_integer(environment.text(name).value_or("")); same && *same >= 1 && *same <= kMostRanks) {
      return Found{name, static_cast<int>(*same)};
    }
    if (const auto list = environment.text(name)) return Found{name, slurm_tasks_on_node(*list, node, name)};
  }
  return std::nullopt;
}

void check_below(const Found& index, const Found& size) {
  if (index.value >= size.value) fail(index.name, str(index.value), str("0 to ", size.value - 1, " as ", size.name, " is ", size.value));
}

// True when Slurm names exactly one host, or none at all.
bool slurm_on_one_host(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const auto list = environment.text(name)) return list->find_first_of("[,") == std::string::npos;
  }
  return true;
}

// Fills address and port, once the ranks and local ranks are known.
void set_master(RankInfo& info, const Environment& environment) {
  info.master_port = static_cast<int>(environment.integer("MASTER_PORT", 1, 65535).value_or(info.master_port));
  if (const auto address = environment.text("MASTER_ADDR")) {
    info.master_address = *address;
    return;
  }
  const bool one_machine = info.local_world_size == info.world_size;
  if (info.world_size == 1 || (one_machine && info.source != "srun")) return;
  const auto host = slurm_master(environment);
  if (!host && !one_machine) {
    fail("MASTER_ADDR", "nothing",
         str("the host name or address of rank 0's machine, as the ranks are on several machines (", info.local_world_size, " of ",
             info.world_size, " here)"));
  }
  if (host) info.master_address = *host;
}

// Local rank and size may be left out only where they follow from the rest: on `one_machine` they equal the global ones.
void set_local(RankInfo& info, bool one_machine, std::optional<Found> local_rank, std::optional<Found> local_size, const Found& rank,
               const Found& world, const char* local_rank_name, const char* local_size_name) {
  if (!local_size && !one_machine) {
    fail(local_size_name, "nothing", str("the number of ranks on this machine, as ", world.name, " is ", world.value));
  }
  if (!local_size) local_size = world;
  if (!local_rank && local_size->value != world.value) {
    fail(local_rank_name, "nothing", str("this rank's number on its machine, as ", local_size->name, " is ", local_size->value));
  }
  if (!local_rank) local_rank = rank;
  if (local_size->value > world.value) {
    fail(local_size->name, str(local_size->value), str("1 to ", world.value, " as ", world.name, " is ", world.value));
  }
  check_below(*local_rank, *local_size);
  info.local_rank = local_rank->value;
  info.local_world_size = local_size->value;
}

RankInfo from_family(const Environment& environment, const Family& family) {
  const auto rank = find(environment, {family.rank}, 0);
  const auto world = find(environment, {family.world_size}, 1);
  if (!rank) fail(family.rank, "nothing", str("0 to ", world->value - 1, " as ", world->name, " is ", world->value, "; set both or none"));
  if (!world)
    fail(family.world_size, "nothing", str("a number above ", rank->value, ", as ", rank->name, " is ", rank->value, "; set both or none"));
  check_below(*rank, *world);

  RankInfo info;
  info.source = family.source;
  if (info.source == "environment") {
    if (environment.has("CROSS_SIZE")) info.source = "deepspeed";
    if (environment.has("TORCHELASTIC_RUN_ID")) info.source = "torchrun";
  }
  info.rank = rank->value;
  info.world_size = world->value;
  // Ranks set by hand without any address can only be on one machine. An MPI's could be anywhere.
  const auto address = environment.text("MASTER_ADDR");
  const bool by_hand = std::string(family.source) == "environment";
  const bool one_machine = info.world_size == 1 || (address ? is_loopback(*address) : by_hand && !slurm_master(environment));
  set_local(info, one_machine, find(environment, family.local_rank, 0), find(environment, family.local_world_size, 1), *rank, *world,
            family.local_rank.front(), family.local_world_size.front());
  set_master(info, environment);
  return info;
}

RankInfo from_slurm(const Environment& environment) {
  const auto rank = find(environment, {"SLURM_PROCID"}, 0);
  // The step's own count first: a step may use fewer tasks than its job has.
  auto world = find(environment, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}, 1);
  if (!world) {
    // A batch script that asked for nodes but not for tasks: one process, unless its number says otherwise.
    if (rank->value > 0) fail("SLURM_NTASKS", "nothing", str("a number above ", rank->value, ", as SLURM_PROCID is ", rank->value));
    world = Found{"SLURM_NTASKS", 1};
  }
  check_below(*rank, *world);

  RankInfo info;
  info.source = "srun";
  info.rank = rank->value;
  info.world_size = world->value;
  auto local_size = slurm_local_world_size(environment);
  // --ntasks-per-node is an upper limit; the number of tasks may be lower.
  if (local_size) local_size->value = std::min(local_size->value, world->value);
  const bool one_machine = info.world_size == 1 || slurm_on_one_host(environment);
  set_local(info, one_machine, find(environment, {"SLURM_LOCALID"}, 0), local_size, *rank, *world, "SLURM_LOCALID",
            "SLURM_NTASKS_PER_NODE");
  set_master(info, environment);
  return info;
}

}  // namespace

RankInfo rank_info_from(const Environment& environment) {
  const bool by_slurm = environment.has("SLURM_PROCID");
  for (const Family& family : families()) {
    if (!is_present(environment, family)) continue;
    const bool is_pmi = std::string(family.rank) == "PMI_RANK";
    if (is_pmi && by_slurm && !any_set(environment, family.local_rank)) continue;
    return from_family(environment, family);
  }
  if (by_slurm) return from_slurm(environment);
  if (environment.has("LOCAL_RANK")) {
    fail("RANK", "nothing",
         str("a number, as LOCAL_RANK is \"", environment.all().at("LOCAL_RANK"), "\"; set RANK and WORLD_SIZE, or none of them"));
  }
  RankInfo info;
  set_master(info, environment);
  return info;
}

}  // namespace deepspeed::launcher

namespace deepspeed {

RankInfo rank_info_from_environment() { return launcher::rank_info_from(base::Environment::of_process()); }

}  // namespace deepspeed
