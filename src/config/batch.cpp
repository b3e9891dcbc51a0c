#include "config/batch.h"

#include <optional>

#include "base/text.h"

namespace deepspeed::config {

namespace {

using base::str;
using Kind = ConfigIssue::Kind;

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr const char* kSequence = "sequence_parallel_size";

std::optional<int64_t> given(const Settings& settings, const char* path) {
  if (!settings.has(path)) return std::nullopt;
  return settings.integer(path);
}

// Ranks that share the batch, or nothing when the sizes do not divide.
std::optional<int64_t> data_parallel_ranks(Settings& settings, int64_t world_size) {
  if (settings.spoiled(kSequence) || settings.spoiled("ds_sequence_parallel_size") || settings.spoiled("data_parallel_size"))
    return std::nullopt;
  const int64_t sequence = settings.integer(kSequence);
  if (world_size % sequence != 0) {
    settings.refuse(Kind::kInconsistent, kSequence, str("got ", sequence, ", allowed a divisor of the number of ranks, ", world_size));
    return std::nullopt;
  }
  const int64_t ranks = world_size / sequence;
  const auto wanted = given(settings, "data_parallel_size");
  if (wanted && *wanted != ranks) {
    settings.refuse(
        Kind::kInconsistent, "data_parallel_size",
        str("got ", *wanted, ", allowed ", ranks, ": the number of ranks, ", world_size, ", divided by ", kSequence, ", ", sequence));
    return std::nullopt;
  }
  return ranks;
}

}  // namespace

void resolve_batch(Settings& settings, int64_t world_size, Config& config) {
  const auto ranks = data_parallel_ranks(settings, world_size);
  const bool spoiled = settings.spoiled(kTrain) || settings.spoiled(kMicro) || settings.spoiled(kAccumulation);
  if (!ranks || spoiled) return;
  config.data_parallel_size = *ranks;
  const auto train = given(settings, kTrain);
  const auto micro = given(settings, kMicro);
  const auto accumulation = given(settings, kAccumulation);
  if (!train && !micro) {
    if (settings.has("elasticity.enabled") && settings.flag("elasticity.enabled")) return;  // it would choose the batch
    settings.refuse(Kind::kMissing, kTrain, str("got neither ", kTrain, " nor ", kMicro, ", allowed one of them or both"));
    return;
  }
  const int64_t steps = accumulation ? *accumulation : train && micro ? *train / *micro / *ranks : 1;
  const int64_t samples = micro ? *micro : *train / *ranks / steps;
  const __int128 product = static_cast<__int128>(samples) * steps * *ranks;
  if (product > INT64_MAX) {
    settings.refuse(Kind::kOutOfRange, kTrain, "got sizes whose product is above what 64 bits hold, allowed smaller ones");
    return;
  }
  const int64_t total = train ? *train : static_cast<int64_t>(product);
  if (steps < 1 || samples < 1 || product != total) {
    const auto shown = [](const std::optional<int64_t>& value, int64_t inferred) {
      return value ? str(*value) : str(inferred, " (inferred)");
    };
    settings.refuse(Kind::kInconsistent, kTrain,
                    str("got ", kTrain, " ", shown(train, total), ", ", kMicro, " ", shown(micro, samples), ", ", kAccumulation, " ",
                        shown(accumulation, steps), " and ", *ranks, " data-parallel ranks, allowed ", kTrain, " = ", kMicro, " * ",
                        kAccumulation, " * ranks with all of them at least 1"));
    return;
  }
  config.train_batch_size = total;
  config.train_micro_batch_size_per_gpu = samples;
  config.gradient_accumulation_steps = steps;
}

}  // namespace deepspeed::config
