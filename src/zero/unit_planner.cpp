#include "zero/unit_planner.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

namespace deepspeed::zero {
namespace {

// "model.layers.3.mlp.up_proj.weight" -> "model.layers.3"; "lm_head.weight" -> "lm_head".
std::string block_of(const std::string& name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (end > begin && std::all_of(name.begin() + begin, name.begin() + end, [](unsigned char c) { return std::isdigit(c); })) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
  const size_t last = name.rfind('.');
  return last == std::string::npos ? "" : name.substr(0, last);
}

// Enough units to overlap with backward, none so small that the cost of a call shows.
int64_t whole_unit_limit(const std::vector<PlannedParameter>& parameters, const Config::Zero& zero) {
  constexpr int64_t kSmallest = 1 << 18;
  constexpr int64_t kUnitsPerModel = 8;
  int64_t total = 0;
  for (const auto& parameter : parameters) total += parameter.elements;
  return std::min(std::max(total / kUnitsPerModel, kSmallest), std::max<int64_t>(zero.reduce_bucket_size, 1));
}

}  // namespace

std::vector<PlannedUnit> plan_units(const std::vector<PlannedParameter>& parameters, const Policy& policy, const Config::Zero& zero) {
  // Group, trained, whole, block -> the unit being filled.
  using Key = std::tuple<int, bool, bool, std::string>;
  struct Open {
    size_t unit;
    int64_t elements;
  };
  std::map<Key, Open> open;
  std::vector<PlannedUnit> units;
  const int64_t whole_limit = whole_unit_limit(parameters, zero);
  const int64_t shard_limit = std::max<int64_t>(zero.reduce_bucket_size, 1);
  int64_t persistent = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const PlannedParameter& p = parameters[i];
    bool whole = !policy.shard_parameters;
    if (!whole && p.elements <= zero.param_persistence_threshold && persistent + p.elements <= zero.model_persistence_threshold) {
      whole = true;
      persistent += p.elements;
    }
    const int64_t limit = whole ? whole_limit : shard_limit;
    const Key key{p.trainable ? p.group : -1, p.trainable, whole, whole ? std::string() : block_of(p.name)};
    auto place = open.find(key);
    if (place == open.end() || (place->second.elements > 0 && place->second.elements + p.elements > limit)) {
      units.push_back({{}, p.trainable, p.trainable ? p.group : 0, whole});
      place = open.insert_or_assign(key, Open{units.size() - 1, 0}).first;
    }
    units[place->second.unit].members.push_back(i);
    place->second.elements += p.elements;
  }
  return units;
}

}  // namespace deepspeed::zero
