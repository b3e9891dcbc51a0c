#include "accel/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <glob.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::accel {
namespace {

// The devices' files, so that a machine without any never loads the large accelerator libraries.
bool machine_shows_accelerator() {
  glob_t found{};
  const bool nvidia = ::glob("/dev/nvidia[0-9]*", 0, nullptr, &found) == 0 && found.gl_pathc > 0;
  ::globfree(&found);
  return nvidia || ::access("/dev/kfd", F_OK) == 0;
}

// torch registers its accelerator when the library is loaded; we link only the CPU part, so that start-up stays short without one.
bool load_accelerator_library() {
  static const bool loaded = [] {
    for (const char* name : {"libtorch_cuda.so", "libtorch_hip.so"}) {
      if (::dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return true;
    }
    return false;
  }();
  return loaded;
}

int device_count() {
  if (!at::hasCUDA()) return 0;
  return static_cast<int>(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount());
}

}  // namespace

AcceleratorInfo detect_accelerator() {
  if (!machine_shows_accelerator()) return {"cpu", 0, "no accelerator device on this machine"};
  if (!load_accelerator_library()) {
    const char* why = ::dlerror();
    return {"cpu", 0, base::str("accelerator present, but torch's library for it does not load: ", why ? why : "unknown reason")};
  }
  const int count = device_count();
  if (count == 0) return {"cpu", 0, "torch's accelerator library is loaded but finds no device"};
  return {at::hasHIP() ? "rocm" : "cuda", count, ""};
}

c10::Device choose_device(const std::string& request, int local_rank) {
  std::string wanted = request;
  if (wanted.empty() || wanted == "auto") {
    const char* environment = std::getenv("DS_ACCELERATOR");
    wanted = environment && *environment ? environment : "auto";
  }
  if (wanted == "cpu") return c10::Device(c10::DeviceType::CPU);
  const AcceleratorInfo info = detect_accelerator();
  if (wanted == "auto") {
    if (info.count == 0) return c10::Device(c10::DeviceType::CPU);
    return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(local_rank % info.count));
  }
  int index = local_rank;
  if (wanted.rfind("cuda:", 0) == 0 || wanted.rfind("rocm:", 0) == 0) {
    char* end = nullptr;
    index = static_cast<int>(std::strtol(wanted.c_str() + 5, &end, 10));
    if (*end != '\0' || wanted.size() == 5) index = -1;
  } else if (wanted != "cuda" && wanted != "rocm") {
    index = -1;
  }
  if (index < 0) {
    throw Error(ErrorCode::kEnvironment, "accel", base::str("device: got \"", wanted, "\", allowed auto, cpu, cuda, cuda:N, rocm, rocm:N"));
  }
  if (info.count == 0 || index >= info.count) {
    throw Error(ErrorCode::kEnvironment, "accel",
                base::str("device ", wanted, ": got ", info.count, " accelerators", info.detail.empty() ? "" : " (", info.detail,
                          info.detail.empty() ? "" : ")", ", allowed an index below that count; use \"cpu\" to train without one"));
  }
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace deepspeed::accel
