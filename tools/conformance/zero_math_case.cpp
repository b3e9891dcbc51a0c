// units/zero_math: memory estimates. The other files of the family belong to features that are not built.
#include "conformance/unit_file.h"
#include "deepspeed/memory_estimate.h"

namespace deepspeed::conformance {
namespace {

constexpr double kPerByte = 0x1p-50;  // the products are doubles

std::string compare_bytes(const std::string& what, int64_t got, const Json& expected) {
  const double wanted = number_of(expected);
  return within(static_cast<double>(got), wanted, kPerByte, 1) ? "" : difference(what, static_cast<double>(got), wanted, 1);
}

std::string compare_row(const std::string& where, const EstimatedBytes& got, const Json& row) {
  const std::string host = compare_bytes(where + " host", got.host, row.at("cpu_bytes"));
  return host.empty() ? compare_bytes(where + " device", got.device, row.at("gpu_bytes")) : host;
}

Outcome run_estimate(const Json& item) {
  EstimateInput input;
  input.parameters = item.at("total_params");
  input.largest_layer_parameters = item.value("largest_layer_params", int64_t{0});
  input.nodes = item.value("num_nodes", int64_t{1});
  input.devices_per_node = item.value("num_gpus_per_node", int64_t{1});
  input.buffer_factor = item.value("additional_buffer_factor", 1.5);
  const Json& expect = item.at("expect");
  for (const auto& row : expect.value("zero2", Json::array())) {
    const std::string text = compare_row("stage 2", estimate_zero2(input, row.at("offload_optimizer")), row);
    if (!text.empty()) return Outcome::fail(text);
  }
  for (const auto& row : expect.value("zero3", Json::array())) {
    const auto got = estimate_zero3(input, row.at("offload_optimizer"), row.at("offload_param"), row.at("zero_init"));
    const std::string text = compare_row("stage 3 " + row.dump(), got, row);
    if (!text.empty()) return Outcome::fail(text);
  }
  return Outcome::ok();
}

}  // namespace

Outcome run_zero_math_case(const UnitFile& file, const Json& item) {
  if (file.stem() == "bandwidth") return Outcome::skip("communication log");
  if (file.stem() == "partitions") return Outcome::skip("DeepSpeed's checkpoint formats");
  if (file.stem() == "flops") return Outcome::skip("flops profiler");
  if (!item.contains("total_params")) return Outcome::skip("memory estimates of a module");
  return run_estimate(item);
}

}  // namespace deepspeed::conformance
