// ds_report: what this installation and this machine offer. A probe that fails is a row and a warning, never the end of the report.
//
// Exit status: 0, 2 for wrong usage, 4 when the installation or the environment would keep a run from starting.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <torch/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

#include "deepspeed/comm.h"
#include "deepspeed/error.h"
#include "report_table.h"

namespace {

using Json = nlohmann::ordered_json;

#ifdef __OPTIMIZE__
constexpr const char* kBuild = "optimized";
#else
constexpr const char* kBuild = "not optimized";
#endif
#ifdef __clang__
constexpr const char* kCompiler = __VERSION__;
#else
constexpr const char* kCompiler = "GCC " __VERSION__;
#endif

struct Problems {
  Json errors = Json::array();
  Json warnings = Json::array();
};

// The folder of the library or program that holds `symbol`.
std::filesystem::path folder_of(const void* symbol) {
  Dl_info info{};
  return dladdr(symbol, &info) && info.dli_fname ? std::filesystem::path(info.dli_fname).parent_path() : std::filesystem::path();
}

// The value of the first line that starts with `key` in a file of "key : value" lines, or "".
std::string field_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0 && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  }
  return "";
}

uint64_t memory_field(const std::string& key) { return std::strtoull(field_of("/proc/meminfo", key).c_str(), nullptr, 10) * 1024; }

// A setting in torch's own description of its build, or "".
std::string torch_setting(const std::string& name) {
  const std::string text = at::show_config();
  std::smatch match;
  return std::regex_search(text, match, std::regex("[ ,]" + name + "=([^,\\s]*)")) ? match[1].str() : "";
}

Json versions(Problems& problems) {
  Json rows;
  rows["deepspeed"] = DEEPSPEED_VERSION;
  rows["torch_built_with"] = TORCH_VERSION;
  const std::string runtime = torch_setting("TORCH_VERSION");
  rows["torch_running"] = runtime;
  // torch's C++ interface changes between minor versions.
  const std::string built_minor = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  if (runtime.compare(0, built_minor.size(), built_minor) != 0) {
    problems.errors.push_back("torch: got " + runtime + " at run time, allowed " + built_minor + "x, with which this was built");
  }
  rows["torch_folder"] = folder_of(reinterpret_cast<const void*>(&at::show_config)).string();
  rows["torch_cuda"] = torch_setting("CUDA_VERSION");
  rows["compiler"] = std::string(kCompiler) + ", C++" + std::to_string(__cplusplus / 100 % 100);
  rows["build"] = kBuild;
  return rows;
}

Json machine(Problems& problems) {
  Json rows;
  rows["cpu"] = field_of("/proc/cpuinfo", "model name");
  const std::string flags = field_of("/proc/cpuinfo", "flags") + " ";
  for (const char* feature : {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16"}) {
    rows[feature] = (" " + flags).find(std::string(" ") + feature + " ") != std::string::npos;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  rows["cores"] = sysconf(_SC_NPROCESSORS_ONLN);
  rows["cores_allowed"] = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  rows["memory_bytes"] = memory_field("MemTotal:");
  rows["memory_available_bytes"] = memory_field("MemAvailable:");
  struct statvfs shared {};
  const uint64_t shared_bytes = statvfs("/dev/shm", &shared) == 0 ? uint64_t{shared.f_blocks} * shared.f_frsize : 0;
  rows["shared_memory_bytes"] = shared_bytes;
  if (shared_bytes < (uint64_t{1} << 29))
    problems.warnings.push_back("/dev/shm is below 512 MiB: in a container, raise it with --shm-size");
  return rows;
}

// The same order of questions as training asks: is there a device, does torch's library for it load, does it find the device.
Json accelerator(Problems& problems) {
  int nodes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    nodes += std::regex_match(entry.path().filename().string(), std::regex("nvidia[0-9]+|kfd"));
  }
  Json rows = {{"name", "cpu"}, {"devices", 0}, {"device_files", nodes}};
  if (nodes == 0) return rows;
  if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) && !dlopen("libtorch_hip.so", RTLD_NOW | RTLD_GLOBAL)) {
    const char* why = dlerror();
    problems.warnings.push_back(std::string("there is an accelerator, but torch's library for it does not load: ") + (why ? why : ""));
    return rows;
  }
  const int count = at::hasCUDA() ? c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount() : 0;
  rows["devices"] = count;
  if (count > 0) rows["name"] = at::hasHIP() ? "rocm" : "cuda";
  if (count == 0) problems.warnings.push_back("torch's accelerator library is loaded but finds no device (driver, CUDA_VISIBLE_DEVICES)");
  return rows;
}

Json communication(Problems& problems) {
  const auto torch = folder_of(reinterpret_cast<const void*>(&at::show_config));
  const auto own = folder_of(reinterpret_cast<const void*>(&deepspeed::rank_info_from_environment));
  const bool has_torch = std::filesystem::exists(torch / "libtorch_cuda.so") || std::filesystem::exists(torch / "libtorch_hip.so");
  const bool has_plugin = std::filesystem::exists(own / "libdeepspeed_nccl.so");
  Json rows = {{"gloo", "yes"},
               {"nccl", has_torch && has_plugin ? "yes"
                        : has_torch             ? "in torch, not built here"
                                                : "no"},
               {"mpi", "not built"}};
  try {
    const auto info = deepspeed::rank_info_from_environment();
    rows["launched_by"] = info.source;
    rows["rank"] = std::to_string(info.rank) + " of " + std::to_string(info.world_size);
  } catch (const deepspeed::Error& error) {
    rows["launched_by"] = "contradictory variables";
    problems.errors.push_back(error.what());
  }
  return rows;
}

Json operators() {
  // Asked with impossible arguments: anything but "no such call" and "not permitted" means that it is there.
  errno = 0;
  syscall(SYS_io_uring_setup, 0, nullptr);
  const bool has_io_uring = errno != ENOSYS && errno != EPERM;
  return {{"cpu_kernels", "built in, chosen by instruction set at load"},
          {"torch_cpu_capability", at::get_cpu_capability()},
          {"torch_threads", at::get_num_threads()},
          {"mkl", at::hasMKL()},
          {"onednn", at::hasMKLDNN()},
          {"openmp", at::hasOpenMP()},
          {"io_uring", has_io_uring}};
}

}  // namespace

int main(int argc, char** argv) {
  bool as_json = false, hide_operators = false, hide_problems = false;
  CLI::App app("Shows versions, machine, accelerator and communication back ends.", "ds_report");
  app.set_version_flag("--version", std::string("ds_report ") + DEEPSPEED_VERSION);
  app.add_flag("--json", as_json, "One JSON object instead of the table");
  app.add_flag("--hide_operator_status", hide_operators, "Leave out kernels and libraries");
  app.add_flag("--hide_errors_and_warnings", hide_problems, "Leave out what is wrong (the exit status still tells)");
  app.footer(
      "\nExamples:\n  ds_report\n  ds_report --json | jq .accelerator\n\nExit status: 0, 2 wrong usage, 4 a run could not start here.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  Problems problems;
  Json report;
  report["versions"] = versions(problems);
  report["machine"] = machine(problems);
  report["accelerator"] = accelerator(problems);
  report["communication"] = communication(problems);
  if (!hide_operators) report["operators"] = operators();
  if (!hide_problems) {
    report["errors"] = problems.errors;
    report["warnings"] = problems.warnings;
  }
  if (as_json) {
    std::cout << report.dump(2) << "\n";
  } else {
    report::print_table(report);
  }
  return problems.errors.empty() ? 0 : 4;
}
