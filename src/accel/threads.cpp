#include "accel/threads.h"

#include <ATen/Parallel.h>

#include <mutex>
#include <set>
#include <thread>

namespace deepspeed::accel {

int usable_threads() {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  return static_cast<int>(seen.size());
}

}  // namespace deepspeed::accel
