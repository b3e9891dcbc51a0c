// The device a process trains on. Nothing outside this folder names a vendor.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace deepspeed::accel {

// "auto" picks the accelerator that torch has and the machine shows (index local_rank modulo their count), else the CPU; "cpu", "cuda" (which is
// ROCm in a ROCm build of torch) and "cuda:N" ask for one. DS_ACCELERATOR stands in for "auto". Loads torch's accelerator library when needed.
// Throws Error(kEnvironment) when the device asked for is not there.
c10::Device choose_device(const std::string& request, int local_rank);

// What choose_device would find, for reports.
struct AcceleratorInfo {
  std::string name;  // "cpu", "cuda", "rocm"
  int count = 0;     // devices; 0 for cpu
  std::string detail;
};
AcceleratorInfo detect_accelerator();

// Waits until everything queued on the device has run. Nothing to do on the CPU.
void synchronize(c10::Device device);

// Resident bytes of this process (CPU memory) now and at its peak.
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace deepspeed::accel
