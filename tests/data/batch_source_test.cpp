#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "deepspeed/data.h"
#include "deepspeed/safetensors.h"
#include "formats/indexed_dataset.h"

namespace deepspeed {
namespace {

namespace fs = std::filesystem;

class Batches : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("batches_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Token i of the run is i, in documents of 13 tokens.
  std::string tokens(int64_t count) {
    const std::string prefix = (folder_ / "tokens").string();
    formats::IndexedDatasetWriter writer(prefix, formats::TokenType::kI32);
    for (int64_t begin = 0; begin < count; begin += 13) {
      std::vector<int64_t> document;
      for (int64_t i = begin; i < std::min(count, begin + 13); ++i) document.push_back(i);
      writer.add(document);
      writer.end_document();
    }
    writer.finish(false);
    return prefix;
  }
  TokenDataOptions options(int64_t count, int64_t micro_batch = 2) {
    return {.prefix = tokens(count), .seq = 4, .micro_batch = micro_batch, .seed = 7};
  }

  fs::path folder_;
};

// First tokens of the rows; checks that each row is a run.
std::vector<int64_t> rows_of(const at::Tensor& batch) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < batch.size(0); ++i) {
    out.push_back(batch[i][0].item<int64_t>() / batch.size(1));
    EXPECT_TRUE(batch[i].equal(at::arange(out.back() * batch.size(1), (out.back() + 1) * batch.size(1), at::kLong)));
  }
  return out;
}

TEST_F(Batches, EachPassTakesEveryRowOnceWhateverTheWorld) {
  const int64_t rows = 24;
  std::vector<int64_t> single;  // the order with one rank
  for (int world = 1; world <= 4; ++world) {
    TokenDataOptions o = options(rows * 4 + 3);
    o.world_size = world;
    std::vector<std::unique_ptr<BatchSource>> ranks;
    for (o.rank = 0; o.rank < world; ++o.rank) ranks.push_back(open_token_data(o));
    EXPECT_EQ(ranks[0]->rows(), rows);
    EXPECT_EQ(ranks[0]->batches(), rows / (2 * world));
    std::vector<int64_t> order;
    while (static_cast<int64_t>(order.size()) < 2 * rows) {
      for (const auto& rank : ranks) {
        for (const int64_t row : rows_of(rank->next())) order.push_back(row);
      }
    }
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.begin() + rows).size(), static_cast<size_t>(rows)) << world;
    EXPECT_EQ(std::set<int64_t>(order.begin() + rows, order.end()).size(), static_cast<size_t>(rows)) << world;
    EXPECT_NE(std::vector<int64_t>(order.begin(), order.begin() + rows), std::vector<int64_t>(order.begin() + rows, order.end()))
        << "another pass, another order";
    if (world == 1) single = order;
    EXPECT_EQ(order, single) << "rows are dealt out in one order";
  }
}

TEST_F(Batches, RanksAreDisjointWhereAPassEndsInsideABatch) {
  TokenDataOptions o = options(7 * 4, 2);
  o.world_size = 2;
  auto zero = open_token_data(o);
  o.rank = 1;
  auto one = open_token_data(o);
  std::vector<int64_t> order;
  for (int step = 0; step < 7; ++step) {
    for (auto* rank : {zero.get(), one.get()}) {
      for (const int64_t row : rows_of(rank->next())) order.push_back(row);
    }
  }
  for (size_t pass = 0; pass < 4; ++pass) {
    EXPECT_EQ(std::set<int64_t>(order.begin() + static_cast<long>(7 * pass), order.begin() + static_cast<long>(7 * (pass + 1))).size(), 7u);
  }
}

TEST_F(Batches, ResumeGoesOnExactly) {
  auto source = open_token_data(options(400));
  for (int i = 0; i < 17; ++i) source->next();
  const SamplerState state = source->state();
  EXPECT_EQ(state.consumed, 34);
  std::vector<at::Tensor> expected;
  for (int i = 0; i < 60; ++i) expected.push_back(source->next());
  auto again = open_token_data(options(400));
  again->restore(state);
  for (const at::Tensor& batch : expected) EXPECT_TRUE(again->next().equal(batch));
}

TEST_F(Batches, ResumeWithAnotherWorldTakesTheNextRows) {
  auto one = open_token_data(options(400, 4));
  one->next();
  const SamplerState state = one->state();
  std::vector<int64_t> expected = rows_of(one->next());
  std::vector<int64_t> got;
  for (int rank = 0; rank < 2; ++rank) {
    TokenDataOptions o = options(400, 2);
    o.world_size = 2;
    o.rank = rank;
    auto source = open_token_data(o);
    source->restore(state);
    for (const int64_t row : rows_of(source->next())) got.push_back(row);
  }
  EXPECT_EQ(got, expected);
  EXPECT_THROW(one->restore({-1}), Error);
}

TEST_F(Batches, HeldOutRowsAreTheLastAndNeverTrainedOn) {
  TokenDataOptions o = options(40 * 4, 2);
  o.held_out = 0.2;
  auto training = open_token_data(o);
  EXPECT_EQ(training->rows(), 32);
  for (int i = 0; i < 32; ++i) {
    for (const int64_t row : rows_of(training->next())) EXPECT_LT(row, 32);
  }
  o.part = DataPart::kHeldOut;
  auto held_out = open_token_data(o);
  EXPECT_EQ(held_out->batches(), 4);
  EXPECT_EQ(rows_of(held_out->next()), (std::vector<int64_t>{32, 33}));
  EXPECT_EQ(rows_of(held_out->next()), (std::vector<int64_t>{34, 35}));
}

TEST_F(Batches, WrongOptionsAndDataAreErrors) {
  const auto broken = [&](const std::function<void(TokenDataOptions&)>& change) {
    TokenDataOptions o = options(40);
    change(o);
    EXPECT_THROW(open_token_data(o), Error);
  };
  broken([](auto& o) { o.seq = 1; });
  broken([](auto& o) { o.seq = 41; });
  broken([](auto& o) { o.micro_batch = 0; });
  broken([](auto& o) { o.rank = 1; });
  broken([](auto& o) { o.world_size = 0; });
  broken([](auto& o) { o.held_out = 1.0; });
  broken([](auto& o) { o.part = DataPart::kHeldOut; });
  broken([](auto& o) { o.prefix += "x"; });
  TokenDataOptions o = options(40);
  o.vocab_size = 10;
  try {
    auto source = open_token_data(o);
    for (int i = 0; i < 5; ++i) source->next();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDataFormat);
    EXPECT_NE(std::string(error.what()).find("allowed 0 to 9"), std::string::npos) << error.what();
  }
}

TEST_F(Batches, ExactTokensComeByStepAndRank) {
  const std::string path = (folder_ / "exact.safetensors").string();
  save_safetensors(path, {{"tokens", at::arange(3 * 2 * 2 * 5, at::kLong).view({3, 2, 2, 5})}});
  auto one = open_tokens_file(path, 1, 2);
  EXPECT_EQ(one->micro_batch(), 2);
  EXPECT_EQ(one->batches(), 3);
  one->next();
  EXPECT_TRUE(one->next().equal(at::arange(30, 40, at::kLong).view({2, 5})));
  EXPECT_EQ(one->state().consumed, 8);
  one->next();
  EXPECT_THROW(one->next(), Error);
  one->restore({4});
  EXPECT_TRUE(one->next().equal(at::arange(30, 40, at::kLong).view({2, 5})));
  EXPECT_THROW(one->restore({3}), Error);
  // Another number of ranks: equal runs of the same rows.
  auto all = open_tokens_file(path, 0, 1);
  EXPECT_TRUE(all->next().equal(at::arange(0, 20, at::kLong).view({4, 5})));
  auto third = open_tokens_file(path, 2, 4);
  EXPECT_TRUE(third->next().equal(at::arange(10, 15, at::kLong).view({1, 5})));
  EXPECT_THROW(open_tokens_file(path, 0, 3), Error);
  EXPECT_THROW(open_tokens_file(path, 0, 1, 10)->next(), Error);
  save_safetensors(path, {{"tokens", at::arange(4)}});
  EXPECT_THROW(open_tokens_file(path, 0, 1), Error);
}

}  // namespace
}  // namespace deepspeed
