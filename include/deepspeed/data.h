// Training data: token files, the batches each rank takes from them, and text turned into token files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "deepspeed/error.h"

namespace deepspeed {

// How far a run has come in its data. Belongs into checkpoints; the same for all ranks.
struct SamplerState {
  int64_t consumed = 0;  // rows taken so far by all ranks together
};

// Batches of one rank. Not thread safe. Every rank calls next() equally often; the ranks' batches are disjoint.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // int64 [micro batch, seq] on the CPU. Throws Error(kDataFormat) for tokens outside the vocabulary, Error(kUsage) when the data is used up
  // (exact tokens only; others start over).
  virtual at::Tensor next() = 0;

  virtual int64_t micro_batch() const = 0;  // rows of a batch
  virtual int64_t seq() const = 0;          // tokens of a row
  virtual int64_t rows() const = 0;         // rows of one pass over the data, all ranks together
  // Batches of each rank in one pass; a last incomplete one does not count.
  virtual int64_t batches() const = 0;

  virtual SamplerState state() const = 0;
  // The next batch is the one that follows `state.consumed` rows, exactly, also when that was written by another number of ranks or another micro
  // batch. Throws Error(kUsage) for a state that cannot be of this data.
  virtual void restore(const SamplerState& state) = 0;
};

enum class DataPart { kTraining, kHeldOut };

struct TokenDataOptions {
  std::string prefix;            // PREFIX.bin and PREFIX.idx
  int64_t seq = 0;               // tokens per row
  int64_t micro_batch = 1;       // rows per rank and batch
  int rank = 0, world_size = 1;  // of the ranks that share the data
  uint64_t seed = 0;             // of the order
  double held_out = 0.0;         // fraction of the rows, the last ones, kept from training
  DataPart part = DataPart::kTraining;
  int64_t vocab_size = 0;  // tokens must be below it; 0: not checked
};

// The tokens of a data set as one run, cut into rows. Training rows come in an order that depends on seed and pass alone: each pass takes every row
// once, and rows of consecutive batches are dealt to the ranks in turn, rank 0 first. Held-out rows come in file order. Throws Error.
std::unique_ptr<BatchSource> open_token_data(const TokenDataOptions& options);

// Exact tokens for a replay: tensor "tokens" int64 [micro steps, ranks, micro batch, seq] of a safetensors file. With another number of ranks the
// rows of a micro step, in order, are dealt out in equal runs.
std::unique_ptr<BatchSource> open_tokens_file(const std::string& path, int rank, int world_size, int64_t vocab_size = 0);

// The prefix of a token file with the content of `paths` (text and .jsonl files), made with MODEL/tokenizer.json under `cache_directory` unless it is
// there already and nothing has changed. One path that is the prefix of a token file (or its .bin or .idx) is used as it is. Tokenising runs
// scripts/tokenize_text.py: interpreter from DEEPSPEED_PYTHON, script from DEEPSPEED_SCRIPTS_DIR, else those of the installation. One rank calls this,
// the others wait for it. Throws Error: kEnvironment without interpreter or package, kDataFormat when the script refuses its input.
std::string ensure_tokenized(const std::vector<std::string>& paths, const std::string& model_directory, const std::string& cache_directory);

// Token ids of a prompt, by the same script.
std::vector<int64_t> encode_prompt(const std::string& text, const std::string& model_directory);

}  // namespace deepspeed
