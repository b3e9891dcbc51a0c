// Buffers that come and go every step, kept instead of returned to the system: a page fault costs as much as filling the page.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace deepspeed::accel {

// Memory for `bytes` on `device`, 64-byte aligned, contents undefined. Freed buffers are kept for the next request of the same size. Other devices
// than the CPU use torch's caching allocator. Any thread.
at::DataPtr pooled_bytes(size_t bytes, c10::Device device);

// A flat tensor in such memory; it goes back when the last reference is gone.
at::Tensor pooled_empty(int64_t elements, at::ScalarType type, c10::Device device);

// Returns memory that was freed, but kept by the C library's allocator, to the system. Slow (milliseconds per GB): for rare, large changes.
void give_back_freed_memory();

// A flat tensor over memory that somebody else made; `data` owns it.
at::Tensor tensor_over(at::DataPtr data, int64_t elements, at::ScalarType type);

}  // namespace deepspeed::accel
