#include "launcher/machine.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include "base/text.h"

namespace deepspeed::launcher {
namespace {

// First number in a small file of the kernel, or `otherwise`.
int64_t read_number(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t value = otherwise;
  return file >> value ? value : otherwise;
}

std::vector<int> cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  const auto place = [](int core) {
    const std::string topology = base::str("/sys/devices/system/cpu/cpu", core, "/topology/");
    return std::make_tuple(read_number(topology + "physical_package_id", 0), read_number(topology + "core_id", core), core);
  };
  std::vector<std::tuple<int64_t, int64_t, int>> places;
  for (int core : cores) places.push_back(place(core));
  std::sort(places.begin(), places.end());
  for (size_t i = 0; i < cores.size(); ++i) cores[i] = std::get<2>(places[i]);
  return cores;
}

// Cores' worth of time by the container's quota (version 2, then version 1 of control groups), or 0 for no limit.
int quota_of_container() {
  int64_t quota = 0;
  int64_t period = 0;
  std::ifstream version2("/sys/fs/cgroup/cpu.max");
  if (!(version2 >> quota >> period)) {
    quota = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 0);
    period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", 0);
  }
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<int>((quota + period - 1) / period);
}

int count_device_nodes() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("nvidia", 0) != 0 || name.size() == 6) continue;
    count += std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c); });
  }
  return count;
}

}  // namespace

int count_visible_devices(const std::string& value) {
  int count = 0;
  std::istringstream parts(value);
  std::string part;
  while (std::getline(parts, part, ',')) {
    part.erase(std::remove_if(part.begin(), part.end(), [](unsigned char c) { return std::isspace(c); }), part.end());
    if (part.empty() || part[0] == '-' || part == "NoDevFiles" || part == "none") break;
    ++count;
  }
  return count;
}

Machine inspect_machine(const base::Environment& environment) {
  Machine machine;
  machine.cores = cores_of_process();
  machine.core_budget = static_cast<int>(machine.cores.size());
  if (const int quota = quota_of_container(); quota > 0) machine.core_budget = std::min(machine.core_budget, quota);
  if (environment.has("CUDA_VISIBLE_DEVICES")) {
    const std::string value = environment.all().at("CUDA_VISIBLE_DEVICES");
    machine.cuda_devices = count_visible_devices(value);
    machine.device_source = base::str("CUDA_VISIBLE_DEVICES=", value);
  } else {
    machine.cuda_devices = count_device_nodes();
    machine.device_source = "device files /dev/nvidia*";
  }
  return machine;
}

}  // namespace deepspeed::launcher
