// zero_to_fp32: the full fp32 weights of a ZeRO checkpoint of the real DeepSpeed, as safetensors. Needs neither torch nor Python.
#include <CLI/CLI.hpp>
#include <cctype>
#include <cmath>
#include <iostream>

#include "base/text.h"
#include "deepspeed/error.h"
#include "formats/zero_checkpoint.h"

namespace {

using deepspeed::Error;
using deepspeed::ErrorCode;
using deepspeed::base::str;

// "5GB", "500MB", "1.5GiB", "1000000".
uint64_t parse_size(const std::string& text) {
  size_t used = 0;
  double value = -1;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  std::string unit = text.substr(used);
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const std::pair<const char*, double> units[] = {{"", 1},      {"B", 1},         {"KB", 1e3},      {"MB", 1e6},     {"GB", 1e9},
                                                  {"TB", 1e12}, {"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1 << 30}};
  for (const auto& [name, factor] : units) {
    if (unit == name && value * factor >= 1 && value * factor < 1e18) return static_cast<uint64_t>(value * factor);
  }
  throw Error(ErrorCode::kUsage, "zero_to_fp32", str("--max_shard_size: got \"", text, "\", allowed a size such as 5GB, 500MB or 1GiB"));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Writes the full fp32 weights of a ZeRO checkpoint of DeepSpeed (stages 1 to 3, fp32, fp16 and bf16) as safetensors: "
      "model.safetensors, or\n"
      "numbered shards with an index. The files are read without running anything in them, and memory does not grow with the model.",
      "zero_to_fp32");
  std::string directory, output, size = "5GB";
  deepspeed::formats::ZeroCheckpoint::Options options;
  bool exclude_frozen = false, safe = false, list = false;
  app.add_option("checkpoint_dir", directory, "Folder that holds `latest` and the checkpoints")->required();
  app.add_option("output_dir", output, "Folder for the weights");
  app.add_option("-t,--tag", options.tag, "Checkpoint in checkpoint_dir, such as global_step100 (default: what `latest` says)");
  app.add_option("--max_shard_size", size, "Largest file, such as 5GB or 500MB")->capture_default_str();
  app.add_flag("--exclude_frozen_parameters", exclude_frozen, "Leave out what was not trained");
  app.add_flag("--safe_serialization", safe, "As always here: safetensors");
  app.add_flag("--list", list, "Only list names and shapes");
  app.set_version_flag("--version", DEEPSPEED_VERSION);
  try {
    app.parse(argc, argv);
    if (output.empty() && !list) throw CLI::RequiredError("output_dir");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    const uint64_t limit = parse_size(size);
    if (output.ends_with(".bin") || output.ends_with(".pt") || output.ends_with(".safetensors")) {
      throw Error(ErrorCode::kUsage, "zero_to_fp32",
                  str("output_dir: got ", output, ", allowed a folder: the weights are written as safetensors files in it"));
    }
    options.frozen_parameters = !exclude_frozen;
    const deepspeed::formats::ZeroCheckpoint checkpoint(directory, options);
    uint64_t elements = 0;
    for (const auto& weight : checkpoint.weights()) {
      elements += weight.elements();
      if (!list) continue;
      std::vector<std::string> sizes;
      for (const int64_t size_of_dimension : weight.shape) sizes.push_back(std::to_string(size_of_dimension));
      std::cout << weight.name << " [" << deepspeed::base::join(sizes, ", ") << "]\n";
    }
    std::cerr << "[zero_to_fp32] " << checkpoint.folder() << ": stage " << checkpoint.stage() << ", saved by " << checkpoint.ranks()
              << (checkpoint.ranks() == 1 ? " rank, " : " ranks, ") << checkpoint.weights().size() << " tensors, " << elements
              << " elements\n";
    if (list) return 0;
    for (const auto& file : deepspeed::formats::write_fp32_weights(checkpoint, output, limit))
      std::cerr << "[zero_to_fp32] wrote " << output << "/" << file << "\n";
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return deepspeed::exit_status(error);
  } catch (const std::exception& error) {
    std::cerr << "[zero_to_fp32] " << error.what() << "\n";
    return 1;
  }
  return 0;
}
