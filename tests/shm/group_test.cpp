// The protocol between ranks of one host, with ranks as threads: what ThreadSanitizer watches (make tsan).
#include "shm/group.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "deepspeed/error.h"
#include "shm/meeting.h"
#include "shm/region.h"

namespace deepspeed::shm {
namespace {

using Body = std::function<void(const std::shared_ptr<Domain>&)>;

void run_ranks(int ranks, const Body& body, std::chrono::milliseconds timeout = std::chrono::seconds(120)) {
  Meeting meeting;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(std::make_shared<Domain>(meeting.store(), "test", rank, ranks, timeout));
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// A sum over ranks, from memory of the caller's own.
struct Sum {
  std::shared_ptr<Group> group;
  uint64_t number = 0;
  int value = 0;
  std::vector<int> mine, sum;

  // Element i of rank r is value + r + i.
  static std::shared_ptr<Sum> post(const std::shared_ptr<Group>& group, int value, size_t n) {
    auto call = std::make_shared<Sum>();
    call->group = group;
    call->value = value;
    for (size_t i = 0; i < n; ++i) call->mine.push_back(value + group->rank() + static_cast<int>(i));
    call->sum.assign(n, 0);
    const auto take = [call = call.get(), group = group.get(), number = group->next()] {
      std::vector<int> incoming(call->mine.size());
      for (int peer = 0; peer < group->size(); ++peer) {
        group->read_peer(peer, number, incoming.data(), 0, incoming.size() * sizeof(int));
        for (size_t i = 0; i < incoming.size(); ++i) call->sum[i] += incoming[i];
      }
    };
    call->number = group->describe("sum", static_cast<uint64_t>(value), call->mine.data(), n * sizeof(int), take);
    group->progress();
    return call;
  }

  void check() {
    group->wait_all(number, "sum");
    const int ranks = group->size();
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_EQ(sum[i], ranks * (value + static_cast<int>(i)) + ranks * (ranks - 1) / 2) << "call " << number << " rank " << group->rank();
    }
    // Peers have read it: it may change.
    std::fill(mine.begin(), mine.end(), -1);
  }
};

TEST(Group, CallsOfTwoGroupsWaitedForInAnyOrderGiveTheirSums) {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [](const std::shared_ptr<Domain>& domain) {
      const std::shared_ptr<Group> groups[] = {std::make_shared<Group>("a", domain), std::make_shared<Group>("b", domain)};
      std::mt19937 same(7), own(static_cast<unsigned>(domain->rank()));
      for (int round = 0; round < 60; ++round) {
        std::vector<std::shared_ptr<Sum>> calls;
        const auto count = 1 + same() % 12;
        for (unsigned c = 0; c < count; ++c) {
          const auto& group = groups[same() % 2];
          const size_t sizes[] = {0, 3, kInlineBytes / sizeof(int), 1000, 20000};
          calls.push_back(Sum::post(group, static_cast<int>(same() % 1000), sizes[same() % 5]));
        }
        std::shuffle(calls.begin(), calls.end(), own);
        for (const auto& call : calls) call->check();
      }
    });
  }
}

TEST(Group, MoreCallsThanTheRingHoldsMayBeUnderWay) {
  run_ranks(3, [](const std::shared_ptr<Domain>& domain) {
    const auto group = std::make_shared<Group>("a", domain);
    std::vector<std::shared_ptr<Sum>> calls;
    for (int c = 0; c < static_cast<int>(3 * kRing); ++c) calls.push_back(Sum::post(group, c, 500));
    for (const auto& call : calls) call->check();
  });
}

// What one rank writes into memory that all map before a call, its peers see after it.
TEST(Group, ACallOrdersWritesIntoSharedMemory) {
  const int file = Region::create(4096);
  run_ranks(3, [file](const std::shared_ptr<Domain>& domain) {
    const auto group = std::make_shared<Group>("a", domain);
    const Region region(domain, domain->next_region(), ::fcntl(file, F_DUPFD_CLOEXEC, 0), 4096);
    auto* numbers = reinterpret_cast<int*>(region.data());
    for (int round = 0; round < 300; ++round) {
      numbers[16 * domain->rank()] = round + domain->rank();
      group->wait_all(group->describe("written", 1, nullptr, 0, {}), "written");
      for (int peer = 0; peer < 3; ++peer) ASSERT_EQ(numbers[16 * peer], round + peer);
      group->wait_all(group->describe("read", 2, nullptr, 0, {}), "read");
    }
  });
  ::close(file);
}

TEST(Group, DataInSharedMemoryIsReadInPlace) {
  const int file = Region::create(1 << 16);
  run_ranks(2, [file](const std::shared_ptr<Domain>& domain) {
    const auto group = std::make_shared<Group>("a", domain);
    const Region region(domain, domain->next_region(), ::fcntl(file, F_DUPFD_CLOEXEC, 0), 1 << 16);
    std::byte* mine = region.data() + domain->rank() * (1 << 15);
    const std::byte* theirs = nullptr;
    const auto number = group->next();
    group->wait_all(group->describe("place", 1, mine, 1 << 15, [&] { theirs = group->peer_data(1 - domain->rank(), number); }), "place");
    EXPECT_EQ(theirs, region.data() + (1 - domain->rank()) * (1 << 15));
  });
  ::close(file);
}

TEST(Group, OtherCallsOnAPeerAreNamedOnAllRanks) {
  std::atomic<int> named = 0;
  run_ranks(3, [&](const std::shared_ptr<Domain>& domain) {
    const auto group = std::make_shared<Group>("a", domain);
    const bool odd = domain->rank() == 1;
    try {
      group->wait_all(group->describe(odd ? "gather 'x'" : "sum 'y'", odd ? 1 : 2, nullptr, 0, {}), "here");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCommMismatch);
      ++named;
    }
  });
  EXPECT_EQ(named, 3);
}

TEST(Group, ARankThatLeavesIsNamedByThoseThatWait) {
  std::atomic<int> failed = 0, named = 0;  // who hears it first leaves too, and may be the one that the other names
  run_ranks(3, [&](const std::shared_ptr<Domain>& domain) {
    if (domain->rank() == 2) return;
    const auto group = std::make_shared<Group>("a", domain);
    try {
      group->wait_all(group->describe("sum", 1, nullptr, 0, {}), "sum");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerDied);
      ++failed;
      named += std::string(error.what()).find("rank 2 has left") != std::string::npos ? 1 : 0;
    }
  });
  EXPECT_EQ(failed, 2);
  EXPECT_GE(named, 1);
}

TEST(Group, ALateRankIsATimeout) {
  std::atomic<bool> over = false;
  run_ranks(
      2,
      [&](const std::shared_ptr<Domain>& domain) {
        const auto group = std::make_shared<Group>("a", domain);
        if (domain->rank() == 1) {
          while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return;
        }
        try {
          group->wait_all(group->describe("sum", 1, nullptr, 0, {}), "sum");
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kCommTimeout);
        }
        over = true;
      },
      std::chrono::milliseconds(300));
}

}  // namespace
}  // namespace deepspeed::shm
