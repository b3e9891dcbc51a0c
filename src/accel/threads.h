// Threads of one rank's own loops.
#pragma once

namespace deepspeed::accel {

// How many threads at::parallel_for really runs on when this library calls it: torch's own operations may use more, if the library was compiled
// without OpenMP. At most at::get_num_threads().
int usable_threads();

}  // namespace deepspeed::accel
