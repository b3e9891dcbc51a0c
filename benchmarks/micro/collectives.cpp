// Two ranks of one host over the communicator that the engine uses.
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <string>

#include "deepspeed/comm.h"
#include "deepspeed/error.h"
#include "micro/micro.h"

namespace micro {

void all_reduce(const Options& options) {
  const auto ranks = deepspeed::init_distributed();
  say_copy_rate(options);
  for (const int64_t kib : {64, 1024, 32 * 1024, 256 * 1024}) {
    at::Tensor x = at::arange(kib * 256, at::kInt).remainder_(1000).to(at::kFloat).mul_(ranks->rank() + 1.0);
    ranks->all_reduce(x, deepspeed::ReduceOp::kSum, "check")->wait();
    const double check = checksum({x});
    Options more = options;
    if (kib <= 1024) more.repeat *= 20;  // short ones need many to find their median
    x.fill_(0.0);
    const auto times = sample(
        more, [&] { ranks->barrier("begin"); }, [&] { ranks->all_reduce(x, deepspeed::ReduceOp::kSum, "x")->wait(); });
    say("all-reduce, " + (kib < 1024 ? std::to_string(kib) + " KiB" : std::to_string(kib / 1024) + " MiB"), times, check);
  }
}

void zero_path(const Options& options) {
  const auto ranks = deepspeed::init_distributed();
  say_copy_rate(options);
  constexpr int64_t kElements = 25 << 20;
  const int64_t part = kElements / ranks->size();
  // As the engine has them between ranks of one host: gradients in places that peers read, and one copy of the parameters, of which each rank writes
  // its part. A gather is the barrier after these writes.
  constexpr size_t kBytes = kElements * sizeof(float);
  const auto memory = ranks->share_memory((1 + static_cast<size_t>(ranks->size())) * kBytes, "gradients and parameters");
  if (!memory) throw deepspeed::Error(deepspeed::ErrorCode::kEnvironment, "micro_bench", "zero_path: the ranks cannot share memory here");
  auto* base = reinterpret_cast<float*>(memory->data());
  const at::Tensor parameters = at::from_blob(base, {kElements}), sum = parameters.narrow(0, ranks->rank() * part, part);
  const at::Tensor gradients = at::from_blob(base + kElements * (1 + ranks->rank()), {kElements});
  gradients.copy_(at::arange(kElements, at::kInt).remainder_(1000)).mul_(ranks->rank() + 1.0);
  const auto exchange = [&] {
    ranks->reduce_scatter(sum, gradients, "gradients")->wait();
    ranks->barrier("parameters");
  };
  const auto times = sample(
      options, [&] { ranks->barrier("begin"); }, exchange);
  say("reduce-scatter + all-gather, 100 MiB", times, checksum({parameters}));
}

}  // namespace micro
