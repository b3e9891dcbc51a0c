#include "launcher/rank_plan.h"

#include <gtest/gtest.h>

#include "deepspeed/error.h"
#include "launcher/cores.h"
#include "launcher/master_port.h"

namespace deepspeed::launcher {
namespace {

using base::Environment;

Machine machine_with(int cores, int devices) {
  Machine machine;
  for (int core = 0; core < cores; ++core) machine.cores.push_back(core);
  machine.core_budget = cores;
  machine.cuda_devices = devices;
  machine.device_source = "test";
  return machine;
}

LaunchOptions running(const std::string& program, std::vector<std::string> arguments = {}) {
  LaunchOptions options;
  options.program = program;
  options.arguments = std::move(arguments);
  return options;
}

std::string value_of(const RankProcess& process, const std::string& name) {
  for (const std::string& entry : process.environment) {
    if (entry.rfind(name + "=", 0) == 0) return entry.substr(name.size() + 1);
  }
  return "(not set)";
}

const Environment kEnvironment({{"PATH", "/usr/bin:/bin"}, {"KEPT", "yes"}, {"RANK", "7"}, {"TORCHELASTIC_RUN_ID", "outer"}});

TEST(RankPlan, OneRankPerDeviceElseOne) {
  EXPECT_EQ(number_of_ranks(running("sh"), machine_with(8, 4)), 4);
  EXPECT_EQ(number_of_ranks(running("sh"), machine_with(8, 0)), 1);
  LaunchOptions options = running("sh");
  options.ranks = 3;
  EXPECT_EQ(number_of_ranks(options, machine_with(8, 4)), 3);
  options.ranks = -1;
  EXPECT_THROW(number_of_ranks(options, machine_with(8, 4)), Error);
  EXPECT_NE(make_rank_plan(running("sh"), machine_with(8, 2), kEnvironment, 1).summary.find("2 ranks (one per CUDA device"),
            std::string::npos);
}

TEST(RankPlan, EnvironmentOfTheRanks) {
  LaunchOptions options = running("sh");
  options.ranks = 2;
  options.environment = {"A=b=c", "EMPTY=", "PATH=/bin"};
  const RankPlan plan = make_rank_plan(options, machine_with(8, 0), kEnvironment, 29501);
  ASSERT_EQ(plan.ranks.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const RankProcess& process = plan.ranks[rank];
    EXPECT_EQ(process.rank, rank);
    EXPECT_EQ(value_of(process, "RANK"), std::to_string(rank));
    EXPECT_EQ(value_of(process, "LOCAL_RANK"), std::to_string(rank));
    EXPECT_EQ(value_of(process, "WORLD_SIZE"), "2");
    EXPECT_EQ(value_of(process, "LOCAL_WORLD_SIZE"), "2");
    EXPECT_EQ(value_of(process, "LOCAL_SIZE"), "2");
    EXPECT_EQ(value_of(process, "CROSS_RANK"), "0");
    EXPECT_EQ(value_of(process, "CROSS_SIZE"), "1");
    EXPECT_EQ(value_of(process, "MASTER_ADDR"), "127.0.0.1");
    EXPECT_EQ(value_of(process, "MASTER_PORT"), "29501");
    EXPECT_EQ(value_of(process, "OMP_NUM_THREADS"), "4");
    EXPECT_EQ(value_of(process, "KEPT"), "yes");
    EXPECT_EQ(value_of(process, "A"), "b=c");
    EXPECT_EQ(value_of(process, "EMPTY"), "");
    EXPECT_EQ(value_of(process, "TORCHELASTIC_RUN_ID"), "(not set)");
    EXPECT_TRUE(process.cores.empty());
  }
}

TEST(RankPlan, ThreadsFollowTheCoresUnlessTheUserSetThem) {
  LaunchOptions options = running("sh");
  options.ranks = 3;
  EXPECT_EQ(value_of(make_rank_plan(options, machine_with(2, 0), kEnvironment, 1).ranks[2], "OMP_NUM_THREADS"), "1");
  Machine with_quota = machine_with(64, 0);
  with_quota.core_budget = 6;
  EXPECT_EQ(value_of(make_rank_plan(options, with_quota, kEnvironment, 1).ranks[0], "OMP_NUM_THREADS"), "2");
  const Environment user({{"PATH", "/bin"}, {"OMP_NUM_THREADS", "5"}});
  EXPECT_EQ(value_of(make_rank_plan(options, with_quota, user, 1).ranks[0], "OMP_NUM_THREADS"), "5");
  options.environment = {"OMP_NUM_THREADS=9"};
  EXPECT_EQ(value_of(make_rank_plan(options, with_quota, user, 1).ranks[0], "OMP_NUM_THREADS"), "9");
}

TEST(RankPlan, CoresAreSharedOutEqually) {
  LaunchOptions options = running("sh");
  options.ranks = 2;
  options.bind_cores = true;
  RankPlan plan = make_rank_plan(options, machine_with(5, 0), kEnvironment, 1);
  EXPECT_EQ(plan.ranks[0].cores, (std::vector<int>{0, 1}));
  EXPECT_EQ(plan.ranks[1].cores, (std::vector<int>{2, 3}));
  EXPECT_EQ(value_of(plan.ranks[1], "OMP_NUM_THREADS"), "2");
  options.core_list = "9,4-6";
  plan = make_rank_plan(options, machine_with(5, 0), kEnvironment, 1);
  EXPECT_EQ(plan.ranks[0].cores, (std::vector<int>{9, 4}));
  EXPECT_EQ(plan.ranks[1].cores, (std::vector<int>{5, 6}));
  options.core_list = "3";
  EXPECT_THROW(make_rank_plan(options, machine_with(5, 0), kEnvironment, 1), Error);
}

TEST(RankPlan, CommandsOfProgramsAndScripts) {
  RankPlan plan = make_rank_plan(running("sh", {"-c", "", "a b"}), machine_with(1, 0), kEnvironment, 1);
  ASSERT_EQ(plan.ranks[0].command.size(), 4u);
  EXPECT_NE(plan.ranks[0].command[0].find("/sh"), std::string::npos);
  EXPECT_EQ(plan.ranks[0].command[2], "");
  EXPECT_EQ(plan.ranks[0].command[3], "a b");

  // Any program does for $PYTHON here.
  const Environment with_python({{"PATH", "/usr/bin:/bin"}, {"PYTHON", "sh"}});
  LaunchOptions options = running("package.tool", {"--x"});
  options.kind = ProgramKind::kModule;
  auto command = make_rank_plan(options, machine_with(1, 0), with_python, 1).ranks[0].command;
  command.erase(command.begin());
  EXPECT_EQ(command, (std::vector<std::string>{"-u", "-m", "package.tool", "--local_rank=0", "--x"}));
  options.local_rank_argument = false;
  command = make_rank_plan(options, machine_with(1, 0), with_python, 1).ranks[0].command;
  command.erase(command.begin());
  EXPECT_EQ(command, (std::vector<std::string>{"-u", "-m", "package.tool", "--x"}));
}

TEST(RankPlan, MissingProgramsAreErrorsOfTheEnvironment) {
  for (const char* program : {"no-such-program", "./no-such-program", "no-such-script.py", "/"}) {
    try {
      make_rank_plan(running(program), machine_with(1, 0), kEnvironment, 1);
      ADD_FAILURE() << program;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
      EXPECT_NE(std::string(error.what()).find(program), std::string::npos);
    }
  }
}

TEST(RankPlan, EntriesThatTheLauncherOwnsAreRefused) {
  LaunchOptions options = running("sh");
  for (const char* entry : {"RANK=1", "WORLD_SIZE=1", "MASTER_PORT=1", "novalue", "=x"}) {
    options.environment = {entry};
    EXPECT_THROW(make_rank_plan(options, machine_with(1, 0), kEnvironment, 1), Error) << entry;
  }
}

TEST(RankPlan, MoreRanksThanDevicesIsSaid) {
  LaunchOptions options = running("sh");
  options.ranks = 3;
  EXPECT_NE(make_rank_plan(options, machine_with(8, 2), kEnvironment, 1).warning, "");
  EXPECT_EQ(make_rank_plan(options, machine_with(8, 0), kEnvironment, 1).warning, "");
  EXPECT_EQ(make_rank_plan(options, machine_with(8, 3), kEnvironment, 1).warning, "");
}

TEST(Cores, Lists) {
  EXPECT_EQ(parse_core_list("0-2,7"), (std::vector<int>{0, 1, 2, 7}));
  EXPECT_EQ(parse_core_list("3"), (std::vector<int>{3}));
  for (const char* bad : {"", ",", "1,", ",1", "a", "2-1", "1-", "-1", "1,1", "0-3,2", "99999"})
    EXPECT_THROW(parse_core_list(bad), Error) << bad;
}

TEST(Machine, VisibleDevices) {
  EXPECT_EQ(count_visible_devices(""), 0);
  EXPECT_EQ(count_visible_devices("0"), 1);
  EXPECT_EQ(count_visible_devices("2, 0"), 2);
  EXPECT_EQ(count_visible_devices("GPU-1a2b,GPU-3c4d,MIG-5"), 3);
  EXPECT_EQ(count_visible_devices("0,-1,1"), 1);
  EXPECT_EQ(count_visible_devices("-1"), 0);
  EXPECT_EQ(inspect_machine(Environment(Environment::Map{{"CUDA_VISIBLE_DEVICES", "0,2"}})).cuda_devices, 2);
  EXPECT_GE(inspect_machine(Environment(Environment::Map{})).core_budget, 1);
}

TEST(MasterPort, ChoicesDiffer) {
  const MasterPort first = MasterPort::choose(std::nullopt);
  const MasterPort second = MasterPort::choose(std::nullopt);
  EXPECT_NE(first.port(), second.port());
  EXPECT_EQ(MasterPort::choose(first.port()).port(), first.port());
}

}  // namespace
}  // namespace deepspeed::launcher
