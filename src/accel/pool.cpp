#include "accel/pool.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <malloc.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace deepspeed::accel {
namespace {

class Pool {
 public:
  // Never destroyed: buffers of static tensors may come back after main.
  static Pool& instance() {
    static auto* pool = new Pool;
    return *pool;
  }

  void* take(size_t bytes) {
    {
      std::lock_guard lock(mutex_);
      auto& list = idle_[bytes];
      if (!list.empty()) {
        void* data = list.back();
        list.pop_back();
        return data;
      }
    }
    void* data = std::aligned_alloc(64, bytes);
    if (!data) {
      trim();
      data = std::aligned_alloc(64, bytes);
      if (!data) throw std::bad_alloc();
    }
    return data;
  }

  void give(void* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    idle_[bytes].push_back(data);
  }

  void trim() {
    std::lock_guard lock(mutex_);
    for (auto& [bytes, list] : idle_) {
      for (void* data : list) std::free(data);
    }
    idle_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> idle_;  // bytes -> buffers of that size
};

struct Loan {
  void* data;
  size_t bytes;
};

void end_loan(void* context) {
  auto* loan = static_cast<Loan*>(context);
  Pool::instance().give(loan->data, loan->bytes);
  delete loan;
}

}  // namespace

at::DataPtr pooled_bytes(size_t bytes, c10::Device device) {
  if (!device.is_cpu()) return c10::GetAllocator(device.type())->allocate(bytes);
  if (bytes == 0) return at::DataPtr(nullptr, device);
  const size_t rounded = (bytes + 63) / 64 * 64;
  void* data = Pool::instance().take(rounded);
  return at::DataPtr(data, new Loan{data, rounded}, &end_loan, device);
}

void give_back_freed_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

at::Tensor tensor_over(at::DataPtr data, int64_t elements, at::ScalarType type) {
  const c10::Device device = data.device();
  const size_t bytes = static_cast<size_t>(elements) * c10::elementSize(type);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                                       c10::GetAllocator(device.type()), /*resizable=*/false);
  const auto key = c10::computeDispatchKey(type, c10::kStrided, device);
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  return tensor;
}

at::Tensor pooled_empty(int64_t elements, at::ScalarType type, c10::Device device) {
  return tensor_over(pooled_bytes(static_cast<size_t>(elements) * c10::elementSize(type), device), elements, type);
}

}  // namespace deepspeed::accel
