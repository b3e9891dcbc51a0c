// Rows of an indexed data set, shuffled and dealt to ranks.
//
//   position p of the run:   0 .. R-1 first pass | R .. 2R-1 second pass | ...        R training rows
//   row of position p:       Permutation(R, seed, p / R)(p % R)
//   batch of rank r:         positions consumed + r * micro ... + micro - 1; then consumed grows by world * micro
#include <ATen/ops/empty.h>

#include <cmath>

#include "base/text.h"
#include "data/check_tokens.h"
#include "data/permutation.h"
#include "deepspeed/data.h"
#include "formats/indexed_dataset.h"

namespace deepspeed {
namespace {

[[noreturn]] void misused(const std::string& text) { throw Error(ErrorCode::kUsage, "data", text); }

class TokenData : public BatchSource {
 public:
  explicit TokenData(const TokenDataOptions& options) : options_(options), dataset_(checked(options).prefix) {
    if (!dataset_.contiguous()) {
      throw Error(ErrorCode::kDataFormat, "data",
                  base::str(options.prefix, ".idx: got sequences with gaps or out of order, allowed back to back"));
    }
    const int64_t all = dataset_.tokens() / options.seq;
    const auto held_out = static_cast<int64_t>(std::ceil(static_cast<double>(all) * options.held_out));
    const bool training = options.part == DataPart::kTraining;
    first_row_ = training ? 0 : all - held_out;
    rows_ = training ? all - held_out : held_out;
    const int64_t least = training ? 1 : world() * options.micro_batch;
    if (rows_ < least) {
      throw Error(ErrorCode::kDataFormat, "data",
                  base::str(training ? "training" : "held-out", " rows of ", options.prefix, ": got ", rows_, " (", dataset_.tokens(),
                            " tokens, ", options.seq, " a row, ", options.held_out, " held out), allowed ", least, " or more"));
    }
  }

  at::Tensor next() override {
    at::Tensor batch = at::empty({options_.micro_batch, options_.seq}, at::kLong);
    int64_t* out = batch.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < options_.micro_batch; ++i) {
      const int64_t row = row_at(consumed_ + options_.rank * options_.micro_batch + i);
      const std::span<int64_t> tokens(out + i * options_.seq, static_cast<size_t>(options_.seq));
      dataset_.read(row * options_.seq, tokens);
      data::check_tokens(tokens, options_.vocab_size, options_.prefix, row);
    }
    consumed_ += world() * options_.micro_batch;
    return batch;
  }

  int64_t micro_batch() const override { return options_.micro_batch; }
  int64_t seq() const override { return options_.seq; }
  int64_t rows() const override { return rows_; }
  int64_t batches() const override { return rows_ / (world() * options_.micro_batch); }
  SamplerState state() const override { return {consumed_}; }

  void restore(const SamplerState& state) override {
    if (state.consumed < 0) misused(base::str("rows consumed: got ", state.consumed, ", allowed 0 or more"));
    consumed_ = state.consumed;
  }

 private:
  static const TokenDataOptions& checked(const TokenDataOptions& options) {
    if (options.seq < 2) misused(base::str("tokens per row: got ", options.seq, ", allowed 2 or more"));
    if (options.micro_batch < 1) misused(base::str("rows per batch: got ", options.micro_batch, ", allowed 1 or more"));
    if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
      misused(base::str("rank: got ", options.rank, " of ", options.world_size, ", allowed 0 to the number of ranks - 1"));
    }
    if (!(options.held_out >= 0.0 && options.held_out < 1.0)) {
      misused(base::str("fraction held out: got ", options.held_out, ", allowed 0 or more, below 1"));
    }
    return options;
  }

  int64_t world() const { return options_.world_size; }

  int64_t row_at(int64_t position) const {
    const int64_t pass = position / rows_, place = position % rows_;
    if (options_.part == DataPart::kHeldOut) return first_row_ + place;
    const data::Permutation order(static_cast<uint64_t>(rows_), options_.seed, static_cast<uint64_t>(pass));
    return first_row_ + static_cast<int64_t>(order(static_cast<uint64_t>(place)));
  }

  TokenDataOptions options_;
  formats::IndexedDataset dataset_;
  int64_t first_row_ = 0;
  int64_t rows_ = 0;
  int64_t consumed_ = 0;
};

}  // namespace

std::unique_ptr<BatchSource> open_token_data(const TokenDataOptions& options) { return std::make_unique<TokenData>(options); }

}  // namespace deepspeed
