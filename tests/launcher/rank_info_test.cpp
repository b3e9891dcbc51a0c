#include "launcher/rank_info.h"

#include <gtest/gtest.h>

#include "deepspeed/error.h"
#include "launcher/slurm_list.h"

namespace deepspeed::launcher {
namespace {

using Map = base::Environment::Map;

RankInfo discover(Map variables) { return rank_info_from(base::Environment(std::move(variables))); }

// The error's text, or "" when there was none.
std::string failure(Map variables) {
  try {
    discover(std::move(variables));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
    return error.what();
  }
  return "";
}

#define EXPECT_FAILS_NAMING(name, ...)                                    \
  do {                                                                    \
    const std::string text = failure(__VA_ARGS__);                        \
    EXPECT_NE(text.find(name), std::string::npos) << "message: " << text; \
    EXPECT_NE(text.find("got "), std::string::npos) << text;              \
    EXPECT_NE(text.find("allowed "), std::string::npos) << text;          \
  } while (0)

TEST(RankInfo, NothingSetIsAWorldOfOne) {
  const RankInfo info = discover({{"PATH", "x"}, {"SLURM_NTASKS", "4"}});  // salloc's shell has the count but no number
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.world_size, 1);
  EXPECT_EQ(info.local_world_size, 1);
  EXPECT_EQ(info.master_address, "127.0.0.1");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_EQ(info.source, "none");
}

TEST(RankInfo, Torchrun) {
  const RankInfo info = discover({{"RANK", "5"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "4"},
                                  {"MASTER_ADDR", "node0"},
                                  {"MASTER_PORT", "1234"},
                                  {"TORCHELASTIC_RUN_ID", "none"},
                                  {"SLURM_PROCID", "1"},
                                  {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.master_address, "node0");
  EXPECT_EQ(info.master_port, 1234);
  EXPECT_EQ(info.source, "torchrun");
}

TEST(RankInfo, DeepspeedsLocalSizeIsUnderstood) {
  const RankInfo info =
      discover({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_SIZE", "2"}, {"CROSS_SIZE", "2"}, {"MASTER_ADDR", "a"}});
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.source, "deepspeed");
}

TEST(RankInfo, ByHandOnOneMachineNeedsOnlyRankAndWorldSize) {
  const RankInfo info = discover({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.master_address, "127.0.0.1");
  EXPECT_EQ(info.source, "environment");
  EXPECT_EQ(discover({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}}).local_rank, 1);
  // With another machine's address the local rank cannot be guessed.
  EXPECT_FAILS_NAMING("LOCAL_WORLD_SIZE", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}});
  EXPECT_FAILS_NAMING("LOCAL_RANK", {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}, {"LOCAL_WORLD_SIZE", "2"}});
}

TEST(RankInfo, Mpirun) {
  const RankInfo open_mpi = discover({{"OMPI_COMM_WORLD_RANK", "2"},
                                      {"OMPI_COMM_WORLD_SIZE", "4"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                      {"SLURM_PROCID", "0"},
                                      {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(open_mpi.rank, 2);
  EXPECT_EQ(open_mpi.local_world_size, 4);
  EXPECT_EQ(open_mpi.master_address, "127.0.0.1");
  EXPECT_EQ(open_mpi.source, "mpirun");

  const RankInfo mpich =
      discover({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "10.0.0.1"}});
  EXPECT_EQ(mpich.rank, 3);
  EXPECT_EQ(mpich.local_rank, 1);
  EXPECT_EQ(mpich.local_world_size, 2);
  EXPECT_EQ(mpich.master_address, "10.0.0.1");

  const RankInfo mvapich = discover(
      {{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "2"}, {"MV2_COMM_WORLD_LOCAL_RANK", "0"}, {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(mvapich.world_size, 2);

  // Ranks on two machines: somebody has to say where rank 0 is.
  const Map two_machines = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_FAILS_NAMING("MASTER_ADDR", two_machines);
  Map in_slurm = two_machines;
  in_slurm["SLURM_JOB_NODELIST"] = "gpu[03-04]";
  EXPECT_EQ(discover(in_slurm).master_address, "gpu03");
}

TEST(RankInfo, Srun) {
  const RankInfo info = discover({{"SLURM_PROCID", "5"},
                                  {"SLURM_NTASKS", "6"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_NODEID", "1"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "4,2"},
                                  {"SLURM_JOB_NODELIST", "node[007-008,12],other"}});
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 6);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.master_address, "node007");
  EXPECT_EQ(info.source, "srun");

  const RankInfo per_node = discover({{"SLURM_PROCID", "1"},
                                      {"SLURM_NTASKS", "2"},
                                      {"SLURM_LOCALID", "0"},
                                      {"SLURM_NODEID", "1"},
                                      {"SLURM_NTASKS_PER_NODE", "1"},
                                      {"SLURM_STEP_NODELIST", "a1,a2"},
                                      {"MASTER_ADDR", "10.1.1.1"},
                                      {"MASTER_PORT", "4000"}});
  EXPECT_EQ(per_node.local_world_size, 1);
  EXPECT_EQ(per_node.master_address, "10.1.1.1");
  EXPECT_EQ(per_node.master_port, 4000);

  const RankInfo one_node =
      discover({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}, {"SLURM_JOB_NODELIST", "single"}});
  EXPECT_EQ(one_node.local_world_size, 2);
  EXPECT_EQ(one_node.master_address, "single");
}

TEST(RankInfo, SlurmShellsAreAWorldOfOne) {
  EXPECT_EQ(discover({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_NODELIST", "n1"}}).world_size, 1);
  EXPECT_EQ(discover({{"SLURM_PROCID", "0"}}).world_size, 1);
  // A shell that is itself a step of one task within a larger allocation.
  EXPECT_EQ(discover({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}}).world_size, 1);
  EXPECT_FAILS_NAMING("SLURM_NTASKS", {{"SLURM_PROCID", "2"}});
}

TEST(RankInfo, SlurmsPmiWithoutLocalRanksIsLeftToSlurm) {
  const RankInfo info =
      discover({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "1"}});
  EXPECT_EQ(info.source, "srun");
  EXPECT_EQ(info.local_rank, 1);
  // Without Slurm nobody knows the machine.
  EXPECT_FAILS_NAMING("MPI_LOCALNRANKS", {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
}

TEST(RankInfo, HalfSetVariablesAreNamed) {
  EXPECT_FAILS_NAMING("WORLD_SIZE", {{"RANK", "0"}});
  EXPECT_FAILS_NAMING("RANK", {{"WORLD_SIZE", "2"}});
  EXPECT_FAILS_NAMING("RANK", {{"LOCAL_RANK", "0"}});
  EXPECT_FAILS_NAMING("OMPI_COMM_WORLD_SIZE", {{"OMPI_COMM_WORLD_RANK", "0"}});
  EXPECT_FAILS_NAMING("PMI_SIZE", {{"PMI_RANK", "0"}});
}

TEST(RankInfo, ContradictionsAndNonNumbersAreNamed) {
  EXPECT_FAILS_NAMING("RANK", {{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  EXPECT_FAILS_NAMING("RANK", {{"RANK", "-1"}, {"WORLD_SIZE", "2"}});
  EXPECT_FAILS_NAMING("WORLD_SIZE", {{"RANK", "0"}, {"WORLD_SIZE", "0"}});
  EXPECT_FAILS_NAMING("WORLD_SIZE", {{"RANK", "0"}, {"WORLD_SIZE", "two"}});
  EXPECT_FAILS_NAMING("RANK", {{"RANK", ""}, {"WORLD_SIZE", "2"}});
  EXPECT_FAILS_NAMING("LOCAL_RANK",
                      {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}});
  EXPECT_FAILS_NAMING("LOCAL_WORLD_SIZE", {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}});
  EXPECT_FAILS_NAMING("MASTER_PORT", {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "70000"}});
  EXPECT_FAILS_NAMING("SLURM_PROCID", {{"SLURM_PROCID", "4"}, {"SLURM_NTASKS", "4"}});
  EXPECT_FAILS_NAMING("SLURM_JOB_NODELIST", {{"SLURM_PROCID", "0"},
                                             {"SLURM_NTASKS", "2"},
                                             {"SLURM_LOCALID", "0"},
                                             {"SLURM_TASKS_PER_NODE", "1(x2)"},
                                             {"SLURM_JOB_NODELIST", "n[1-2"}});
}

TEST(SlurmList, FirstHost) {
  EXPECT_EQ(first_slurm_host("alone", "V"), "alone");
  EXPECT_EQ(first_slurm_host("a,b", "V"), "a");
  EXPECT_EQ(first_slurm_host("gpu[007-009,12],login1", "V"), "gpu007");
  EXPECT_EQ(first_slurm_host("gpu[5]", "V"), "gpu5");
  EXPECT_EQ(first_slurm_host("r[0-3]n[1,2]-ib", "V"), "r0n1-ib");
  for (const char* bad : {"", ",a", "n[", "n[]", "n[1-2", "n]1"}) EXPECT_THROW(first_slurm_host(bad, "V"), Error) << bad;
}

TEST(SlurmList, TasksOnNode) {
  EXPECT_EQ(slurm_tasks_on_node("4", 0, "V"), 4);
  EXPECT_EQ(slurm_tasks_on_node("4(x2),1", 1, "V"), 4);
  EXPECT_EQ(slurm_tasks_on_node("4(x2),1", 2, "V"), 1);
  EXPECT_THROW(slurm_tasks_on_node("4(x2),1", 3, "V"), Error);
  for (const char* bad : {"", "x", "4(x", "4(x2", "4(xy)", "0", "-1"}) EXPECT_THROW(slurm_tasks_on_node(bad, 0, "V"), Error) << bad;
}

}  // namespace
}  // namespace deepspeed::launcher
