#include "parameter_groups.h"

#include "deepspeed/error.h"

namespace deepspeed {

std::vector<ParameterGroup> parse_groups(const nlohmann::json& list) {
  std::vector<ParameterGroup> groups;
  try {
    if (!list.is_array()) throw Error(ErrorCode::kUsage, "tools", "parameter groups: allowed a list of objects");
    for (const auto& item : list) {
      ParameterGroup group;
      for (const auto& [key, value] : item.items()) {
        if (key == "match") {
          group.match = value.get<std::string>();
        } else if (key == "lr") {
          group.lr = value.get<double>();
        } else if (key == "weight_decay") {
          group.weight_decay = value.get<double>();
        } else if (key == "eps") {
          group.eps = value.get<double>();
        } else if (key == "betas") {
          group.betas = std::make_pair(value.at(0).get<double>(), value.at(1).get<double>());
        } else {
          throw Error(ErrorCode::kUsage, "tools",
                      "parameter groups: got the key \"" + key + "\", allowed match, lr, weight_decay, eps, betas");
        }
      }
      groups.push_back(std::move(group));
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kUsage, "tools", std::string("parameter groups: ") + error.what());
  }
  return groups;
}

}  // namespace deepspeed
