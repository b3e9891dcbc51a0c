// Linear layer and cross entropy over a large vocabulary, forward and backward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <fstream>
#include <string>

#include "deepspeed/models.h"
#include "micro/micro.h"

namespace micro {
namespace {

// Resident size and its peak, in MB, as the kernel counts them; the peak is from the last reset.
double memory_mb(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  return 0;
}

void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

void loss(const Options& options) {
  constexpr int64_t kHidden = 512, kTokens = 2048, kVocabulary = 131072;
  // The same values as in micro_peers.py.
  at::Tensor x = at::arange(kTokens * kHidden, at::kFloat).remainder_(1013).sub_(506).mul_(2e-3).view({kTokens, kHidden});
  at::Tensor weight = at::arange(kVocabulary * kHidden, at::kInt).remainder_(1009).to(at::kFloat).sub_(504).mul_(7e-5);
  weight = weight.view({kVocabulary, kHidden}).requires_grad_();
  x.requires_grad_();
  const at::Tensor labels = at::arange(kTokens, at::kLong).mul_(7919).remainder_(kVocabulary);
  {
    const at::Tensor a = at::full({kTokens, kHidden}, 0.5), b = at::full({8192, kHidden}, 0.5);
    at::Tensor out = at::empty({kTokens, 8192});
    say("product 2048 x 512 x 8192", sample(options, {}, [&] { at::mm_out(out, a, b.t()); }), 0);
  }
  reset_peak();
  const double before = memory_mb("VmRSS");
  at::Tensor result;
  const auto run = [&] {
    result = deepspeed::linear_cross_entropy(x, weight, labels);
    result.backward();
  };
  const auto forget = [&] {
    x.mutable_grad().reset();
    weight.mutable_grad().reset();
  };
  Options one = options;
  one.warm = 1;
  const auto times = sample(one, forget, run);
  const double gradients_mb = static_cast<double>(kHidden * (kTokens + kVocabulary) * 4) / (1 << 20);
  const double extra_mb = memory_mb("VmHWM") - before - gradients_mb;
  const double slope = weight.grad().abs().sum(at::kDouble).item<double>();
  say("linear + cross entropy, 2048 tokens, vocabulary 131072", times, result.item<double>() + slope, extra_mb);
}

}  // namespace micro
