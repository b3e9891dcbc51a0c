#include "deepspeed/elasticity.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/text.h"
#include "config/value.h"
#include "deepspeed/error.h"

namespace deepspeed {
namespace {

using base::str;
using nlohmann::json;

template <typename... Parts>
[[noreturn]] void refuse(const char* key, const Parts&... parts) {
  throw Error(ErrorCode::kConfigInvalid, "config", str("elasticity", *key ? "." : "", key, ": ", parts...));
}

struct Section {
  int64_t most = 0;  // samples
  std::vector<int64_t> micro_batches;
  int64_t fewest_devices = 1, most_devices = 10000;
  int64_t devices_per_node = 1, model_parallel = 1;
  bool prefer_larger = true;
  bool by_node = true;  // version 0.2
};

int64_t integer(const json& section, const char* key, int64_t fallback, int64_t least) {
  const auto found = section.find(key);
  if (found == section.end()) return fallback;
  if (!found->is_number_integer() || found->get<int64_t>() < least)
    refuse(key, "got ", config::shown(*found), ", allowed an integer >= ", least);
  return found->get<int64_t>();
}

bool is_by_node(const json& section) {
  const json version = section.value("version", json(0.2));
  double number = version.is_number() ? version.get<double>() : 0;
  if (version.is_string()) number = std::strtod(version.get<std::string>().c_str(), nullptr);
  if (number != 0.1 && number != 0.2) refuse("version", "got ", config::shown(version), ", allowed 0.1 or 0.2");
  return number == 0.2;
}

std::vector<int64_t> micro_batches_of(const json& section) {
  const json given = section.value("micro_batch_sizes", json());
  const bool good = given.is_array() && !given.empty() && std::all_of(given.begin(), given.end(), [](const json& size) {
                      return size.is_number_integer() && size.get<int64_t>() > 0;
                    });
  if (!good) refuse("micro_batch_sizes", "got ", config::shown(given), ", allowed a list of integers > 0");
  return given.get<std::vector<int64_t>>();
}

Section parse(const std::string& text) {
  const json section = json::parse(text, nullptr, false);
  if (!section.is_object())
    refuse("", "got ", section.is_discarded() ? text.substr(0, 80) : config::shown(section), ", allowed a section { }");
  if (section.value("enabled", json(false)) != true)
    refuse("enabled", "got ", config::shown(section.value("enabled", json())), ", allowed true");
  Section s;
  if (!section.contains("max_train_batch_size")) refuse("max_train_batch_size", "got none, allowed an integer > 0");
  s.most = integer(section, "max_train_batch_size", 0, 1);
  s.micro_batches = micro_batches_of(section);
  s.fewest_devices = integer(section, "min_gpus", 1, 1);
  s.most_devices = integer(section, "max_gpus", 10000, 1);
  if (s.most_devices < s.fewest_devices) refuse("max_gpus", "got ", s.most_devices, ", allowed at least min_gpus, here ", s.fewest_devices);
  s.devices_per_node = integer(section, "num_gpus_per_node", 1, 1);
  s.model_parallel = integer(section, "model_parallel_size", 1, 1);
  integer(section, "min_time", 0, 0);
  const json larger = section.value("prefer_larger_batch", json(true));
  if (!larger.is_boolean()) refuse("prefer_larger_batch", "got ", config::shown(larger), ", allowed true or false");
  s.prefer_larger = larger.get<bool>();
  s.by_node = is_by_node(section);
  if (!s.by_node && s.model_parallel > 1) refuse("model_parallel_size", "got ", s.model_parallel, " with version 0.1, allowed 1");
  const int64_t largest = *std::max_element(s.micro_batches.begin(), s.micro_batches.end());
  if (largest > s.most) refuse("micro_batch_sizes", "got ", largest, ", allowed at most max_train_batch_size, here ", s.most);
  return s;
}

// Numbers with more divisors than any smaller one: batches made of them suit the most device counts.
constexpr int64_t kHighlyComposite[] = {1,     2,     4,     6,      12,     24,     36,     48,     60,     120,    180,    240,   360,
                                        720,   840,   1260,  1680,   2520,   5040,   7560,   10080,  15120,  20160,  25200,  27720, 45360,
                                        50400, 55440, 83160, 110880, 166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

std::vector<int64_t> device_counts(int64_t batch, const Section& s, int64_t fewest, int64_t most) {
  std::set<int64_t> counts;
  for (const int64_t micro : s.micro_batches) {
    if (batch % micro != 0) continue;
    const int64_t shares = batch / micro;
    for (int64_t d = 1; d * d <= shares; ++d) {
      if (shares % d != 0) continue;
      for (const int64_t count : {d, shares / d}) {
        if (count >= fewest && count <= most) counts.insert(count);
      }
    }
  }
  return {counts.begin(), counts.end()};
}

// The batch with the most device counts.
ElasticPlan best_batch(const Section& s, int64_t largest, int64_t fewest, int64_t most) {
  std::vector<int64_t> bases = s.micro_batches;
  int64_t multiple = 1;
  // Beyond the largest batch it is of no use, and might not fit in 64 bits.
  for (const int64_t micro : s.micro_batches) {
    if (multiple <= largest) multiple = micro / std::gcd(multiple, micro) > largest / multiple ? largest + 1 : std::lcm(multiple, micro);
  }
  if (multiple <= largest) bases.push_back(multiple);
  std::set<int64_t> candidates;
  for (const int64_t base : bases) {
    if (base >= largest) {
      candidates.insert(base);
      continue;
    }
    const auto* above = std::upper_bound(std::begin(kHighlyComposite), std::end(kHighlyComposite), largest / base);
    candidates.insert(base * *(above - 1));
  }
  ElasticPlan best;
  best.train_batch_size = *std::min_element(s.micro_batches.begin(), s.micro_batches.end());
  for (const int64_t batch : candidates) {
    const auto counts = device_counts(batch, s, fewest, most);
    const bool preferred = s.prefer_larger ? batch > best.train_batch_size : batch < best.train_batch_size;
    if (counts.size() > best.device_counts.size() || (counts.size() == best.device_counts.size() && preferred)) {
      best.train_batch_size = batch;
      best.device_counts = counts;
    }
  }
  if (best.device_counts.empty()) {
    refuse("min_gpus", "got ", fewest, " to ", most, " devices, allowed a range in which a batch of at most ", largest,
           " samples can be shared: there is none for these micro batches");
  }
  return best;
}

std::optional<int64_t> micro_batch(const Section& s, int64_t batch, int64_t devices) {
  std::optional<int64_t> largest;
  for (const int64_t micro : s.micro_batches) {
    if (batch / devices % micro == 0) largest = std::max(largest.value_or(0), micro);
  }
  return largest;
}

ElasticPlan plan_by_node(const Section& s, int64_t devices) {
  if (devices < 1) refuse("", "got no number of devices, allowed one: version 0.2 needs it");
  if (s.devices_per_node % s.model_parallel != 0) {
    refuse("num_gpus_per_node", "got ", s.devices_per_node, ", allowed a multiple of model_parallel_size, here ", s.model_parallel);
  }
  const int64_t per_node = s.devices_per_node / s.model_parallel;
  ElasticPlan plan = best_batch(s, s.most / per_node, s.fewest_devices / s.devices_per_node, s.most_devices / s.devices_per_node);
  plan.train_batch_size *= per_node;
  for (int64_t& count : plan.device_counts) count *= per_node;
  if (!std::binary_search(plan.device_counts.begin(), plan.device_counts.end(), devices / s.model_parallel)) {
    // The present devices share another batch, as large as they can.
    const int64_t shares = devices * per_node / s.devices_per_node;
    int64_t chosen = 0;
    for (const int64_t micro : s.micro_batches) {
      const int64_t batch = s.most / (micro * shares) * (micro * shares);
      if (chosen == 0 || (s.prefer_larger ? batch > chosen : batch > 0 && batch < chosen)) chosen = batch;
    }
    if (chosen == 0) refuse("max_train_batch_size", "got ", s.most, ", allowed at least the smallest micro batch times ", shares, " ranks");
    plan.train_batch_size = chosen;
    plan.device_counts = {shares};
  }
  plan.micro_batch = micro_batch(s, plan.train_batch_size, devices);
  return plan;
}

}  // namespace

ElasticPlan plan_elastic_batch(const std::string& section_json, int64_t devices) {
  const Section s = parse(section_json);
  if (s.by_node) return plan_by_node(s, devices);
  ElasticPlan plan = best_batch(s, s.most, s.fewest_devices, s.most_devices);
  if (devices < 1) return plan;
  if (!std::binary_search(plan.device_counts.begin(), plan.device_counts.end(), devices)) {
    std::vector<std::string> words;
    for (const int64_t count : plan.device_counts) words.push_back(std::to_string(count));
    refuse("", "got ", devices, " devices, allowed ", base::join(words, ", "), " for a batch of ", plan.train_batch_size);
  }
  plan.micro_batch = micro_batch(s, plan.train_batch_size, devices);
  return plan;
}

}  // namespace deepspeed
