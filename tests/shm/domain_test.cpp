#include "shm/domain.h"

#include <gtest/gtest.h>

#include <thread>

#include "deepspeed/error.h"
#include "shm/meeting.h"

namespace deepspeed::shm {
namespace {

// A rank that cannot open the segment once left the others waiting for the deadline; now all refuse together and can use another back end.
TEST(Domain, OneRankThatCannotJoinIsKnownToAllAtOnce) {
  Meeting meeting;
  std::vector<std::string> messages(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = meeting.store(
          [rank](const std::string& key, const std::string& value) { return rank == 1 && key == "group" ? "/nowhere/at/all" : value; });
      try {
        const Domain domain(store, "group", rank, 3, std::chrono::minutes(10));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
        messages[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& message : messages) EXPECT_NE(message.find("rank 1 cannot join"), std::string::npos) << message;
}

TEST(Domain, GroupsAreHandedOutAgain) {
  Meeting meeting;
  Domain domain(meeting.store(), "alone", 0, 1, std::chrono::seconds(5));
  std::vector<int> groups;
  for (int i = 0; i < kMaxGroups; ++i) groups.push_back(domain.take_group());
  EXPECT_THROW(domain.take_group(), Error);
  domain.free_group(groups[7]);
  EXPECT_EQ(domain.take_group(), groups[7]);
}

}  // namespace
}  // namespace deepspeed::shm
