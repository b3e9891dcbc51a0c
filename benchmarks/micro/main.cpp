// micro_bench ROW [REPEAT]: our side of one micro row of benchmarks/compare.py. Rows of two ranks are started by the launcher.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "deepspeed/error.h"
#include "micro/micro.h"

namespace micro {

std::vector<double> sample(const Options& options, const std::function<void()>& prepare, const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = -options.warm; i < options.repeat; ++i) {
    if (prepare) prepare();
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
    if (i >= 0) times.push_back(spent.count());
  }
  return times;
}

void say(const std::string& row, const std::vector<double>& ms, double check, double extra_mb) {
  const char* rank = std::getenv("RANK");
  if (rank != nullptr && std::string(rank) != "0") return;
  const nlohmann::json line = {{"row", row}, {"system", "ours"}, {"ms", ms}, {"check", check}, {"extra_mb", extra_mb}};
  std::printf("MICRO %s\n", line.dump().c_str());
  std::fflush(stdout);
}

void say_copy_rate(const Options& options) {
  const at::Tensor from = at::full({64 << 20}, 1.0), to = at::empty({64 << 20});
  say("copy 2 x 256 MiB", sample(options, {}, [&] { to.copy_(from); }), 0);
  say("change 256 MiB in place", sample(options, {}, [&] { to.mul_(1.0); }), 0);
}

double checksum(const std::vector<at::Tensor>& tensors) {
  constexpr int64_t kChunk = 1 << 20;
  double sum = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor flat = tensor.detach().view(-1);
    for (int64_t begin = 0; begin < flat.numel(); begin += kChunk) {
      const at::Tensor part = flat.slice(0, begin, begin + kChunk).to(at::kDouble);
      sum += part.dot(at::arange(begin, begin + part.numel(), at::kDouble).remainder_(13).add_(1)).item<double>();
    }
  }
  return sum;
}

}  // namespace micro

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(const micro::Options&)> rows = {{"optimizer", micro::optimizer},
                                                                       {"small_tensors", micro::small_tensors},
                                                                       {"all_reduce", micro::all_reduce},
                                                                       {"zero_path", micro::zero_path},
                                                                       {"loss", micro::loss},
                                                                       {"checkpoint", micro::checkpoint}};
  const auto row = rows.find(argc > 1 ? argv[1] : "");
  if (row == rows.end()) {
    std::fprintf(stderr, "usage: micro_bench optimizer|small_tensors|all_reduce|zero_path|loss|checkpoint [REPEAT]\n");
    return 2;
  }
  try {
    micro::Options options;
    if (argc > 2) options.repeat = std::max(1, std::atoi(argv[2]));
    row->second(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "micro_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
