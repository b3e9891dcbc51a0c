// Collectives over ranks that are threads, and how they fail.
#include "deepspeed/comm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "deepspeed/error.h"

namespace deepspeed {
namespace {

class Worlds : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

// "shm+gloo": hosts of two ranks, of three when that divides only.
CommOptions options_for(int world, const char* backend) {
  CommOptions options;
  options.backend = backend;
  options.ranks_per_host = world % 4 == 0 ? 2 : 3;
  return options;
}

TEST_P(Worlds, CollectivesGiveTheirContract) {
  const auto [world, backend] = GetParam();
  const CommOptions options = options_for(world, backend);
  run_ranks_as_threads(
      world,
      [world = world](std::shared_ptr<Communicator> c) {
        const int rank = c->rank();
        for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{10000}}) {
          auto sum = at::full({n}, static_cast<double>(rank + 1), at::kFloat);
          c->all_reduce(sum, ReduceOp::kSum, "sum")->wait();
          EXPECT_EQ(sum[0].item<float>(), world * (world + 1) / 2.0f);
          auto gathered = at::zeros({n * world}, at::kFloat);
          c->all_gather(gathered, at::full({n}, static_cast<double>(rank), at::kFloat), "gather")->wait();
          for (int r = 0; r < world; ++r) EXPECT_EQ(gathered[(r + 1) * n - 1].item<float>(), static_cast<float>(r));
          // In place: the input is the own slice of the output.
          auto in_place = at::zeros({n * world}, at::kFloat);
          in_place.narrow(0, rank * n, n).fill_(rank + 0.5);
          c->all_gather(in_place, in_place.narrow(0, rank * n, n), "gather in place")->wait();
          for (int r = 0; r < world; ++r) EXPECT_EQ(in_place[r * n].item<float>(), r + 0.5f);
          for (const auto type : {at::kFloat, at::kBFloat16}) {
            auto input = at::full({n * world}, static_cast<double>(rank + 1), type);
            auto output = at::full({n}, 100.0, at::kFloat);
            c->reduce_scatter(output, input, "reduce_scatter")->wait();
            EXPECT_EQ(output[n - 1].item<float>(), world * (world + 1) / 2.0f);
            c->reduce_scatter(output, input, "reduce_scatter", true)->wait();
            EXPECT_EQ(output[0].item<float>(), world * (world + 1) * 1.0f);
          }
          auto value = at::full({n}, static_cast<double>(rank), at::kBFloat16);
          c->broadcast(value, world - 1, "broadcast")->wait();
          EXPECT_EQ(value[0].item<float>(), world - 1.0f);
        }
        c->barrier("end");
        EXPECT_GT(c->calls(), 0u);
      },
      options);
}

// Who asks sees every element of the result once, final, in pieces.
TEST_P(Worlds, PiecesOfAReductionAreShownWhenTheyAreFinal) {
  const auto [world, backend] = GetParam();
  const CommOptions options = options_for(world, backend);
  run_ranks_as_threads(
      world,
      [world = world](std::shared_ptr<Communicator> c) {
        for (const auto type : {at::kFloat, at::kBFloat16}) {
          for (const int64_t n : {int64_t{0}, int64_t{1}, kPieceElements, 5 * kPieceElements + 3}) {
            auto input = at::full({n * world}, static_cast<double>(c->rank() + 1), type);
            auto output = at::full({n}, 1.0, at::kFloat);
            const auto* values = output.const_data_ptr<float>();
            std::vector<int> seen(static_cast<size_t>(n));
            const auto ready = [&](int64_t begin, int64_t end) {
              EXPECT_EQ(begin % kPieceElements, 0);
              for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)] += values[i] == 1 + world * (world + 1) / 2.0f ? 1 : 100;
            };
            c->reduce_scatter(output, input, "pieces", true, ready)->wait();
            EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), n);
          }
        }
      },
      options);
}

TEST(SharedMemory, IsOneForAllRanksUntilItIsMadePrivate) {
  run_ranks_as_threads(3, [](std::shared_ptr<Communicator> communicator) {
    const auto memory = communicator->share_memory(3 << 20, "numbers");
    ASSERT_TRUE(memory);
    EXPECT_EQ(memory->bytes(), size_t{3} << 20);
    auto* numbers = reinterpret_cast<int*>(memory->data());
    EXPECT_EQ(numbers[communicator->rank()], 0);
    numbers[communicator->rank()] = 10 + communicator->rank();
    communicator->barrier("written");
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(numbers[rank], 10 + rank);
    communicator->barrier("read");
    memory->make_private();
    numbers[0] = 100 + communicator->rank();
    communicator->barrier("written again");
    EXPECT_EQ(numbers[0], 100 + communicator->rank());
    EXPECT_EQ(numbers[2], 12);
  });
}

// Inputs in a region are summed where they lie; the sum is the same as from memory of each rank's own.
TEST(SharedMemory, InputsAreReducedInPlace) {
  run_ranks_as_threads(3, [](std::shared_ptr<Communicator> communicator) {
    constexpr int64_t kElements = 3 * 4096;
    const auto memory = communicator->share_memory(3 * kElements * sizeof(float), "inputs");
    ASSERT_TRUE(memory);
    const auto own = at::arange(kElements, at::TensorOptions(at::kFloat)).mul(communicator->rank() + 1);
    auto placed = at::from_blob(memory->data() + communicator->rank() * kElements * sizeof(float), {kElements});
    placed.copy_(own);
    auto expected = at::empty({kElements / 3}), got = at::empty({kElements / 3});
    communicator->reduce_scatter(expected, own, "own")->wait();
    communicator->reduce_scatter(got, placed, "placed")->wait();
    EXPECT_TRUE(at::equal(got, expected));
  });
}

TEST(SharedMemory, IsRefusedByOtherBackEnds) {
  run_ranks_as_threads(2, [](std::shared_ptr<Communicator> communicator) { EXPECT_EQ(communicator->share_memory(64, "nothing"), nullptr); },
                       {.backend = "gloo"});
}

INSTANTIATE_TEST_SUITE_P(All, Worlds, ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Values("gloo", "shm")));
INSTANTIATE_TEST_SUITE_P(Hosts, Worlds, ::testing::Combine(::testing::Values(4, 6), ::testing::Values("shm+gloo")));

// Rank r's slice for rank t is 100 r + t, so every element of the result tells where it came from.
TEST_P(Worlds, AllToAllBringsEachRankItsSlice) {
  const auto [world, backend] = GetParam();
  run_ranks_as_threads(
      world,
      [world = world](std::shared_ptr<Communicator> c) {
        for (const int64_t n : {int64_t{1}, int64_t{1000}}) {
          auto input = at::empty({world, n}), output = at::empty({world * n});
          for (int to = 0; to < world; ++to) input[to].fill_(100 * c->rank() + to);
          c->all_to_all(output, input.view({-1}), "slices")->wait();
          for (int from = 0; from < world; ++from) {
            EXPECT_EQ(output[from * n].item<float>(), 100 * from + c->rank());
            EXPECT_EQ(output[(from + 1) * n - 1].item<float>(), 100 * from + c->rank());
          }
        }
        for (int root = 0; root < world; ++root) {
          auto value = at::full({5000}, c->rank() + 0.5);
          c->broadcast(value, root, "root")->wait();
          EXPECT_EQ(value[4999].item<float>(), root + 0.5f);
        }
      },
      options_for(world, backend));
}

// Ranks wait for their calls in different orders, over two groups; the parts of a call on several hosts must not cross.
TEST_P(Worlds, CallsMayBeWaitedForInAnyOrder) {
  const auto [world, backend] = GetParam();
  run_ranks_as_threads(
      world,
      [world = world](std::shared_ptr<Communicator> first) {
        const auto second = first->duplicate("second");
        std::mt19937 own(static_cast<unsigned>(first->rank()));
        for (int round = 0; round < 10; ++round) {
          std::vector<at::Tensor> sums, gathered;
          std::vector<std::unique_ptr<PendingCollective>> pending;
          for (int call = 0; call < 6; ++call) {
            const auto& group = call % 2 == 0 ? first : second;
            const int64_t n = call % 3 == 0 ? 7 : 20'000;
            sums.push_back(at::zeros({n}));
            pending.push_back(group->reduce_scatter(sums.back(), at::full({n * world}, first->rank() + call + 1.0), "sum"));
            gathered.push_back(at::zeros({n * world}));
            pending.push_back(group->all_gather(gathered.back(), at::full({n}, first->rank() + call * 10.0), "gather"));
          }
          std::shuffle(pending.begin(), pending.end(), own);
          for (const auto& call : pending) call->wait();
          for (int call = 0; call < 6; ++call) {
            EXPECT_EQ(sums[call][-1].item<float>(), world * (call + 1) + world * (world - 1) / 2.0f);
            EXPECT_EQ(gathered[call][-1].item<float>(), world - 1 + call * 10.0f);
          }
        }
      },
      options_for(world, backend));
}

// Sums over hosts have an order of their own, the same on every rank.
TEST(Hosts, AllReduceGivesTheSameBitsOnAllRanks) {
  std::vector<at::Tensor> results(4);
  run_ranks_as_threads(
      4,
      [&](std::shared_ptr<Communicator> c) {
        EXPECT_STREQ(c->backend(), "shm+gloo");
        auto sum = at::arange(10'001, at::TensorOptions(at::kFloat)).mul_(0.1 * (c->rank() + 1)).sin_();
        c->all_reduce(sum, ReduceOp::kSum, "sum")->wait();
        results[static_cast<size_t>(c->rank())] = sum;
      },
      options_for(4, "shm+gloo"));
  for (const auto& result : results) EXPECT_TRUE(at::equal(result, results[0]));
}

// Above a size the work is cut into slices, one per rank; the sums stay those of rank order, and no rank sees a peer's half-done tensor.
TEST(SharedMemory, LargeAllReduceHasTheBitsOfRankOrder) {
  CommOptions options;
  options.backend = "shm";
  for (const int world : {2, 3, 4}) {
    run_ranks_as_threads(
        world,
        [world](std::shared_ptr<Communicator> c) {
          const auto input = [](int rank, int64_t n, at::ScalarType type) {
            return (at::arange(n, at::kFloat) * (0.37f + static_cast<float>(rank))).sin().to(type);
          };
          for (const int64_t n : {32768, 32769, 100'003, 600'000}) {
            for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
              at::Tensor expected = input(0, n, type), largest = expected.clone();
              for (int rank = 1; rank < world; ++rank) {
                expected += input(rank, n, type);
                largest = largest.maximum(input(rank, n, type));
              }
              at::Tensor sum = input(c->rank(), n, type), top = sum.clone();
              auto first = c->all_reduce(sum, ReduceOp::kSum, "sum");
              auto second = c->all_reduce(top, ReduceOp::kMax, "top");
              second->wait();
              first->wait();
              EXPECT_TRUE(sum.equal(expected)) << n << " " << type;
              EXPECT_TRUE(top.equal(largest)) << n << " " << type;
            }
          }
        },
        options);
  }
}

TEST(SharedMemory, ManyLargeCallsInFlight) {
  CommOptions options;
  options.backend = "shm";
  run_ranks_as_threads(
      2,
      [](std::shared_ptr<Communicator> c) {
        std::vector<at::Tensor> tensors;
        std::vector<std::unique_ptr<PendingCollective>> pending;
        for (int i = 0; i < 50; ++i) {  // two places of the ring each: more than it has
          tensors.push_back(at::full({40'000}, static_cast<double>(i + c->rank()), at::kFloat));
          pending.push_back(c->all_reduce(tensors.back(), ReduceOp::kSum, "call " + std::to_string(i)));
        }
        for (const auto& call : pending) call->wait();
        for (int i = 0; i < 50; ++i) EXPECT_EQ(tensors[static_cast<size_t>(i)].min().item<float>(), 2.0f * static_cast<float>(i) + 1.0f);
      },
      options);
}

TEST(SharedMemory, DivergingRanksAreNamed) {
  std::string message;
  try {
    run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> c) {
      auto tensor = at::zeros({4}, at::kFloat);
      c->all_reduce(tensor, ReduceOp::kSum, c->rank() == 0 ? "left" : "right")->wait();
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCommMismatch);
    message = error.what();
  }
  EXPECT_NE(message.find("'left'"), std::string::npos) << message;
  EXPECT_NE(message.find("'right'"), std::string::npos) << message;
}

// A rank waits in one group while its peer waits in another: both groups' calls go on.
TEST(SharedMemory, OrderOfWaitsMayDiffer) {
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> c) {
    auto other = c->duplicate("other");
    for (int round = 0; round < 200; ++round) {
      auto x = at::full({1000}, 1.0, at::kFloat), y = at::full({10}, 2.0, at::kFloat);
      auto& first = c->rank() == 0 ? c : other;
      auto& second = c->rank() == 0 ? other : c;
      auto a = first->all_reduce(c->rank() == 0 ? x : y, ReduceOp::kSum, c->rank() == 0 ? "x" : "y");
      auto b = second->all_reduce(c->rank() == 0 ? y : x, ReduceOp::kSum, c->rank() == 0 ? "y" : "x");
      a->wait();
      b->wait();
      ASSERT_EQ(x[999].item<float>() + y[9].item<float>(), 6.0f);
    }
  });
}

// More than the shared-memory back end describes at a time.
TEST(Communicator, ManyCallsInFlightKeepTheirOrder) {
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> c) {
    auto other = c->duplicate("second");
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<PendingCollective>> pending;
    for (int i = 0; i < 300; ++i) {
      tensors.push_back(at::full({100 + i}, static_cast<double>(i), at::kFloat));
      pending.push_back((i % 2 ? c : other)->all_reduce(tensors.back(), ReduceOp::kSum, "call " + std::to_string(i)));
    }
    for (int i = 299; i >= 0; --i) {
      pending[static_cast<size_t>(i)]->wait();
      EXPECT_EQ(tensors[static_cast<size_t>(i)][0].item<float>(), 2.0f * static_cast<float>(i));
    }
  });
}

// Two engines in one process both ask for a group of one name; mixing them up made ranks wait for each other for ever.
TEST(Communicator, GroupsOfOneNameAreApart) {
  run_ranks_as_threads(2, [&](std::shared_ptr<Communicator> c) {
    auto a = c->duplicate("parameters"), b = c->duplicate("parameters"), nested = a->duplicate("parameters");
    auto x = at::full({3}, 1.0, at::kFloat), y = at::full({4}, 2.0, at::kFloat), z = at::full({5}, 3.0, at::kFloat);
    auto first = c->rank() == 0 ? a->all_reduce(x, ReduceOp::kSum, "x") : b->all_reduce(y, ReduceOp::kSum, "y");
    auto second = c->rank() == 0 ? b->all_reduce(y, ReduceOp::kSum, "y") : a->all_reduce(x, ReduceOp::kSum, "x");
    first->wait();
    second->wait();
    nested->all_reduce(z, ReduceOp::kSum, "z")->wait();
    EXPECT_EQ(x[0].item<float>() + y[0].item<float>() + z[0].item<float>(), 12.0f);
  });
}

// A rank that never comes: the others end at the deadline with an error that says what, who and where.
class Failures : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Failures, ::testing::Values("gloo", "shm"));

TEST_P(Failures, MissingRankIsANamedErrorNotAHang) {
  std::string message;
  ErrorCode code{};
  try {
    run_ranks_as_threads(2,
                         [&](std::shared_ptr<Communicator> c) {
                           if (c->rank() == 1) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(900));
                             return;
                           }
                           auto tensor = at::zeros({4}, at::kFloat);
                           c->all_reduce(tensor, ReduceOp::kSum, "lonely")->wait();
                         },
                         {.backend = GetParam(), .timeout = std::chrono::milliseconds(300)});
  } catch (const Error& error) {
    message = error.what();
    code = error.code();
  }
  EXPECT_TRUE(code == ErrorCode::kCommTimeout || code == ErrorCode::kPeerDied) << message;
  EXPECT_NE(message.find("all_reduce 'lonely'"), std::string::npos) << message;
  EXPECT_NE(message.find("rank 0 of 2"), std::string::npos) << message;
  EXPECT_NE(message.find("group 'world'"), std::string::npos) << message;
}

TEST_P(Failures, LeavingRankIsNoticedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(run_ranks_as_threads(2,
                                    [&](std::shared_ptr<Communicator> c) {
                                      if (c->rank() == 1) throw std::runtime_error("rank 1 leaves");
                                      auto tensor = at::zeros({4}, at::kFloat);
                                      c->all_reduce(tensor, ReduceOp::kSum, "left alone")->wait();
                                    },
                                    {.backend = GetParam(), .timeout = std::chrono::seconds(60)}),
               std::exception);
  // Far below the deadline: the closed connection is the signal.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace deepspeed
