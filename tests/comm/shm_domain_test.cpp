#include "comm/shm_domain.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "deepspeed/error.h"

namespace deepspeed::comm {
namespace {

class Meeting {
 public:
  // What `spoil` returns for a key takes the place of the true value.
  ShmDomain::Store store(std::function<std::string(const std::string& key, const std::string& value)> spoil = {}) {
    return {[this](const std::string& key, const std::string& value) {
              std::lock_guard lock(mutex_);
              values_[key] = value;
              changed_.notify_all();
            },
            [this, spoil](const std::string& key) {
              std::unique_lock lock(mutex_);
              changed_.wait(lock, [&] { return values_.count(key) > 0; });
              return spoil ? spoil(key, values_[key]) : values_[key];
            }};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// A rank that cannot open the segment once left the others waiting for the deadline; now all refuse together and can use another back end.
TEST(ShmDomain, OneRankThatCannotJoinIsKnownToAllAtOnce) {
  Meeting meeting;
  std::vector<std::string> messages(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = meeting.store(
          [rank](const std::string& key, const std::string& value) { return rank == 1 && key == "group" ? "/nowhere/at/all" : value; });
      try {
        const ShmDomain domain(store, "group", rank, 3, std::chrono::minutes(10));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kEnvironment);
        messages[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& message : messages) EXPECT_NE(message.find("rank 1 cannot join"), std::string::npos) << message;
}

TEST(ShmDomain, GroupsAreHandedOutAgain) {
  Meeting meeting;
  ShmDomain domain(meeting.store(), "alone", 0, 1, std::chrono::seconds(5));
  std::vector<int> groups;
  for (int i = 0; i < kMaxGroups; ++i) groups.push_back(domain.take_group());
  EXPECT_THROW(domain.take_group(), Error);
  domain.free_group(groups[7]);
  EXPECT_EQ(domain.take_group(), groups[7]);
}

}  // namespace
}  // namespace deepspeed::comm
