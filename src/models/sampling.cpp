#include "models/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace deepspeed::models {

int64_t choose_token(std::span<const float> logits, const SamplingRule& rule, std::mt19937_64& random) {
  const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
  if (rule.temperature == 0.0) return likeliest;

  // Candidates, likeliest first; equal ones by id.
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto before = [&](int64_t a, int64_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (rule.top_k > 0 && static_cast<size_t>(rule.top_k) < order.size()) {
    std::partial_sort(order.begin(), order.begin() + rule.top_k, order.end(), before);
    order.resize(static_cast<size_t>(rule.top_k));
  } else {
    std::sort(order.begin(), order.end(), before);
  }

  std::vector<double> weights(order.size());
  const double top = logits[static_cast<size_t>(likeliest)];
  double sum = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((logits[static_cast<size_t>(order[i])] - top) / rule.temperature);
    sum += weights[i];
  }
  if (rule.top_p < 1.0) {
    double kept = 0;
    size_t count = 0;
    while (count < order.size() && (count == 0 || kept < rule.top_p * sum)) kept += weights[count++];
    weights.resize(count);
    sum = kept;
  }
  // 53 bits of one number as a fraction; the library's distributions differ between machines.
  double left = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[weights.size() - 1];
}

}  // namespace deepspeed::models
