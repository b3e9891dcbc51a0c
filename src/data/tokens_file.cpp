// Exact tokens, row by row, from a safetensors file.
#include <ATen/ops/empty.h>

#include <cstring>

#include "base/text.h"
#include "data/check_tokens.h"
#include "deepspeed/data.h"
#include "formats/safetensors.h"

namespace deepspeed {
namespace {

class TokensFile : public BatchSource {
 public:
  TokensFile(const std::string& path, int rank, int world_size, int64_t vocab_size)
      : file_(path), tokens_(file_.at("tokens")), rank_(rank), vocab_size_(vocab_size) {
    if (tokens_.dtype != formats::Dtype::kI64 || tokens_.shape.size() != 4 || tokens_.size() == 0 || tokens_.shape[3] < 2) {
      throw Error(ErrorCode::kDataFormat, "data",
                  base::str(path, ": tokens: got ", formats::dtype_name(tokens_.dtype), " with ", tokens_.shape.size(),
                            " dimensions, allowed I64 [micro steps, ranks, micro batch, seq] with rows of 2 tokens or more"));
    }
    if (world_size < 1 || rank < 0 || rank >= world_size) {
      throw Error(ErrorCode::kUsage, "data", base::str("rank: got ", rank, " of ", world_size, ", allowed 0 to the number of ranks - 1"));
    }
    step_rows_ = tokens_.shape[1] * tokens_.shape[2];
    if (step_rows_ % world_size != 0) {
      throw Error(ErrorCode::kUsage, "data",
                  base::str(path, ": ranks: got ", world_size, ", allowed a divisor of the ", step_rows_, " rows of a micro step"));
    }
    micro_batch_ = step_rows_ / world_size;
  }

  at::Tensor next() override {
    if (consumed_ >= rows()) {
      throw Error(ErrorCode::kUsage, "data",
                  base::str(file_.path(), ": micro steps: got more than its ", batches(), ", allowed that many"));
    }
    at::Tensor batch = at::empty({micro_batch_, seq()}, at::kLong);
    const int64_t first = consumed_ + rank_ * micro_batch_;
    std::memcpy(batch.mutable_data_ptr(), file_.bytes(tokens_).data() + first * seq() * 8, batch.nbytes());
    for (int64_t i = 0; i < micro_batch_; ++i) {
      const int64_t* row = batch.const_data_ptr<int64_t>() + i * seq();
      data::check_tokens({row, static_cast<size_t>(seq())}, vocab_size_, file_.path(), first + i);
    }
    consumed_ += step_rows_;
    return batch;
  }

  int64_t micro_batch() const override { return micro_batch_; }
  int64_t seq() const override { return tokens_.shape[3]; }
  int64_t rows() const override { return tokens_.shape[0] * step_rows_; }
  int64_t batches() const override { return tokens_.shape[0]; }
  SamplerState state() const override { return {consumed_}; }

  void restore(const SamplerState& state) override {
    if (state.consumed < 0 || state.consumed > rows() || state.consumed % step_rows_ != 0) {
      throw Error(ErrorCode::kUsage, "data",
                  base::str(file_.path(), ": rows consumed: got ", state.consumed, ", allowed 0 to ", rows(), " in steps of ", step_rows_));
    }
    consumed_ = state.consumed;
  }

 private:
  formats::SafetensorsFile file_;
  const formats::TensorEntry& tokens_;
  int64_t rank_;
  int64_t vocab_size_;
  int64_t step_rows_ = 0;    // of a micro step, all ranks
  int64_t micro_batch_ = 0;  // of a micro step, one rank
  int64_t consumed_ = 0;
};

}  // namespace

std::unique_ptr<BatchSource> open_tokens_file(const std::string& path, int rank, int world_size, int64_t vocab_size) {
  return std::make_unique<TokensFile>(path, rank, world_size, vocab_size);
}

}  // namespace deepspeed
