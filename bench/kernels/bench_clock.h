// What benchmarks of multi-threaded kernels call seconds.
#pragma once

#include <ctime>

namespace millrace::bench {

enum class BenchClock {
  kWall,
  // CPU time of the process divided by its threads: for machines that others use at the same time.
  // Blind to waiting, so it flatters what does not keep its threads busy.
  kCpu,
};

inline double seconds_now(BenchClock clock, int num_threads) {
  timespec now = {};
  clock_gettime(clock == BenchClock::kWall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &now);
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return clock == BenchClock::kWall ? seconds : seconds / num_threads;
}

}  // namespace millrace::bench
