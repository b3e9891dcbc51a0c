// micro_bench ROW [REPEAT]: our side of one micro row of benchmarks/compare.py. Rows of two ranks are started by the launcher.
#include <ATen/Parallel.h>
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
}

}  // namespace micro

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(const micro::Options&)> rows = {{"optimizer", micro::optimizer},
                                                                       {"small_tensors", micro::small_tensors},
                                                                       {"all_reduce", micro::all_reduce},
                                                                       {"zero_path", micro::zero_path},
                                                                       {"loss", micro::loss}};
  const auto row = rows.find(argc > 1 ? argv[1] : "");
  if (row == rows.end()) {
    std::fprintf(stderr, "usage: micro_bench optimizer|small_tensors|all_reduce|zero_path|loss [REPEAT]\n");
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
