#include "accel/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <link.h>

#include <string>
#include <vector>

namespace deepspeed::accel {
namespace {

// The library was once compiled without OpenMP: every loop of its own ran on one thread, whatever OMP_NUM_THREADS said.
TEST(Threads, OwnLoopsRunOnAllThreadsOfTheRank) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    EXPECT_EQ(usable_threads(), threads);
  }
  at::set_num_threads(before);
}

// Two runtimes would start two sets of threads.
TEST(Threads, OneOpenMpRuntimeIsLoaded) {
  std::vector<std::string> runtimes;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const std::string name = info->dlpi_name;
        for (const char* runtime : {"/libgomp", "/libomp", "/libiomp5"}) {
          if (name.find(runtime) != std::string::npos) static_cast<std::vector<std::string>*>(out)->push_back(name);
        }
        return 0;
      },
      &runtimes);
  EXPECT_EQ(runtimes.size(), 1u) << (runtimes.size() > 1 ? runtimes[0] + ", " + runtimes[1] : "");
}

}  // namespace
}  // namespace deepspeed::accel
