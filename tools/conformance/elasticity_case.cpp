// units/elasticity: batch size, device counts and micro batch of an elastic configuration.
#include "deepspeed/elasticity.h"

#include "conformance/unit_file.h"
#include "deepspeed/error.h"

namespace deepspeed::conformance {
namespace {

struct Attempt {
  std::optional<ElasticPlan> plan;
  std::string error;
};

Attempt attempt(const Json& item) {
  try {
    ElasticPlan plan = plan_elastic_batch(item.at("elasticity").dump(), item.value("world", int64_t{0}));
    if (item.value("return_microbatch", false) && !plan.micro_batch) return {std::nullopt, "no micro batch without a number of devices"};
    return {std::move(plan), ""};
  } catch (const Error& error) {
    return {std::nullopt, error.what()};
  }
}

std::string compare(const Attempt& got, const Json& expect) {
  if (expect.contains("error")) return got.plan ? "got no error, expected one" : "";
  if (!got.plan) return "got an error, expected none: " + got.error;
  if (Json(got.plan->train_batch_size) != expect.at("final_batch_size"))
    return difference("batch", static_cast<double>(got.plan->train_batch_size), number_of(expect["final_batch_size"]), 0);
  if (Json(got.plan->device_counts) != expect.at("valid_gpus")) return "device counts: got " + Json(got.plan->device_counts).dump();
  if (!expect.contains("micro_batch")) return "";
  const Json micro = got.plan->micro_batch ? Json(*got.plan->micro_batch) : Json();
  return micro == expect["micro_batch"] ? "" : "micro batch: got " + micro.dump() + ", expected " + expect["micro_batch"].dump();
}

}  // namespace

Outcome run_elasticity_case(const UnitFile&, const Json& item) {
  const Attempt got = attempt(item);
  std::optional<std::string> right;
  if (better_action(item) == "reject") right = got.plan ? "got no error, expected one" : "";
  return judge(compare(got, item.at("expect")), right);
}

}  // namespace deepspeed::conformance
