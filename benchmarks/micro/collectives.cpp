// Two ranks of one host over the communicator that the engine uses.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <string>

#include "deepspeed/comm.h"
#include "micro/micro.h"

namespace micro {

void all_reduce(const Options& options) {
  const auto ranks = deepspeed::init_distributed();
  say_copy_rate(options);
  for (const int64_t kib : {64, 1024, 32 * 1024, 256 * 1024}) {
    at::Tensor x = at::full({kib * 256}, ranks->rank() + 1.0);
    ranks->all_reduce(x, deepspeed::ReduceOp::kSum, "check")->wait();
    const double check = x.mean(at::kDouble).item<double>();
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
  const at::Tensor gradients = at::full({kElements}, ranks->rank() + 1.0), parameters = at::empty({kElements});
  const at::Tensor sum = at::empty({part});
  const auto exchange = [&] {
    ranks->reduce_scatter(sum, gradients, "gradients")->wait();
    ranks->all_gather(parameters, sum, "parameters")->wait();
  };
  const auto times = sample(
      options, [&] { ranks->barrier("begin"); }, exchange);
  say("reduce-scatter + all-gather, 100 MiB", times, parameters.mean(at::kDouble).item<double>());
}

}  // namespace micro
