// Every operation of a save fails, is torn or is the last one, in turn; then the machine goes on, or comes back from a power loss. At all times: what was
// there before is whole, or what was being saved is; nothing else is visible; nothing is silently wrong; the next save works and leaves no rest.
#include <gtest/gtest.h>

#include <cstdlib>

#include "store/directory.h"
#include "store/memory_disk.h"
#include "store/small_save.h"

namespace deepspeed::store {
namespace {

using testing::Died;
using testing::error_text;
using testing::Fault;
using testing::MemoryDisk;
using testing::small_check;
using testing::small_save;

constexpr const char* kFolder = "runs";

MemoryDisk prepared(bool can_exchange) {
  MemoryDisk disk;
  disk.can_exchange = can_exchange;
  small_save(disk, kFolder, "g1", 1, 2);
  small_save(disk, kFolder, "g2", 2, 2);
  MemoryDisk settled = disk.after_death();
  settled.can_exchange = can_exchange;
  return settled;
}

// A save that replaces a tag, or adds one; with or without pruning.
struct Work {
  std::string tag;
  int keep;
  bool can_exchange;
};

void save(MemoryDisk& disk, const Work& work) { small_save(disk, kFolder, work.tag, 3, 2, work.keep); }

// The generations that may be visible under each tag after the work stopped somewhere. `committed`: the save had reported success.
void expect_whole(MemoryDisk& disk, const Work& work, bool committed, const std::string& where) {
  SCOPED_TRACE(where);
  const std::string latest = latest_tag(disk, kFolder);
  ASSERT_FALSE(latest.empty());
  // `latest` names a whole checkpoint, at every moment at which the file system can exchange names.
  if (work.can_exchange) {
    int generation = 0;
    const std::string error = error_text([&] { generation = small_check(disk, std::string(kFolder) + "/" + latest); });
    EXPECT_EQ(error, "");
    EXPECT_TRUE(generation == 2 || generation == 3) << generation;
    if (committed) {
      EXPECT_EQ(generation, 3);
    }
  }
  for (const auto& listed : list_checkpoints(disk, kFolder)) {
    EXPECT_EQ(listed.problem, "") << listed.tag;
    const int generation = small_check(disk, std::string(kFolder) + "/" + listed.tag);
    const int before = listed.tag == "g1" ? 1 : listed.tag == "g2" ? 2 : 3;
    EXPECT_TRUE(generation == before || (listed.tag == work.tag && generation == 3)) << listed.tag << " has " << generation;
  }
}

void expect_next_save_works(MemoryDisk& disk, const std::string& where) {
  SCOPED_TRACE(where);
  disk.plan({});
  const std::string error = error_text([&] { small_save(disk, kFolder, "g9", 9, 3); });
  EXPECT_EQ(error, "");
  EXPECT_EQ(small_check(disk, std::string(kFolder) + "/g9"), 9);
  EXPECT_EQ(latest_tag(disk, kFolder), "g9");
  int old = 0;
  for (const auto& name : disk.list(kFolder)) {
    EXPECT_TRUE(name == ".lock" || name == "latest" || name[0] == 'g') << name << " is left";
    old += name == "g2" || name == "g3";
  }
  EXPECT_GE(old, 1) << "the checkpoint before is gone";
}

int64_t operations_of(const Work& work) {
  MemoryDisk disk = prepared(work.can_exchange);
  disk.plan({});
  save(disk, work);
  return disk.operations();
}

// States per operation after a power loss; `make torture` asks for more.
uint64_t states() {
  const char* more = std::getenv("DS_TORTURE_STATES");
  return more ? std::strtoull(more, nullptr, 10) : 8;
}

class Faults : public ::testing::TestWithParam<Work> {};

TEST_P(Faults, DeathAtEveryOperation) {
  const Work work = GetParam();
  const int64_t operations = operations_of(work);
  ASSERT_GT(operations, 30);
  for (int64_t at = 0; at < operations; ++at) {
    for (const Fault fault : {Fault::kDeath, Fault::kTornDeath}) {
      MemoryDisk disk = prepared(work.can_exchange);
      disk.plan({at, fault});
      EXPECT_THROW(save(disk, work), Died);
      const std::string where = base::str("operation ", at, " (", disk.fired_at(), ")");
      MemoryDisk after = disk.after_death();
      expect_whole(after, work, false, where);
      expect_next_save_works(after, where);
    }
  }
}

TEST_P(Faults, PowerLossAtEveryOperation) {
  const Work work = GetParam();
  const int64_t operations = operations_of(work);
  for (int64_t at = 0; at <= operations; ++at) {
    MemoryDisk disk = prepared(work.can_exchange);
    disk.plan({at, Fault::kTornDeath});
    bool committed = false;
    try {
      save(disk, work);
      committed = true;
    } catch (const Died&) {
    }
    EXPECT_EQ(committed, at == operations);
    for (uint64_t seed = 0; seed < states(); ++seed) {
      const std::string where = base::str("operation ", at, " (", disk.fired_at(), "), state ", seed);
      MemoryDisk after = disk.after_power_loss(seed);
      after.can_exchange = work.can_exchange;
      expect_whole(after, work, committed, where);
      expect_next_save_works(after, where);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Faults, FullDiskAndInputOutputErrorsAreNamedAndLeaveTheOldOne) {
  const Work work = GetParam();
  const int64_t operations = operations_of(work);
  for (int64_t at = 0; at < operations; ++at) {
    for (const Fault fault : {Fault::kNoSpace, Fault::kIoError}) {
      MemoryDisk disk = prepared(work.can_exchange);
      disk.plan({at, fault});
      const std::string error = error_text([&] { save(disk, work); });
      const std::string where = base::str("operation ", at, " (", disk.fired_at(), "), ", error);
      SCOPED_TRACE(where);
      // Removing needs no space; closing after a sync cannot lose anything, but is reported.
      if (fault == Fault::kIoError) {
        EXPECT_NE(error.find("Input/output error"), std::string::npos);
      }
      EXPECT_TRUE(error.empty() || error.find("E4001") != std::string::npos || error.find("E3002") != std::string::npos);
      disk.plan({});
      expect_whole(disk, work, error.empty(), where);
      expect_next_save_works(disk, where);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Works, Faults,
                         ::testing::Values(Work{"g3", 0, true}, Work{"g2", 0, true}, Work{"g3", 1, true}, Work{"g2", 0, false},
                                           Work{"g3", 0, false}),
                         [](const auto& info) {
                           return info.param.tag + (info.param.keep ? "Pruning" : "") + (info.param.can_exchange ? "" : "WithoutExchange");
                         });

}  // namespace
}  // namespace deepspeed::store
