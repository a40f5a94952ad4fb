// SPDX-License-Identifier: Apache-2.0
// Which clock benchmarks of multi-threaded kernels use for seconds.
#pragma once

#include <ctime>

namespace millrace::bench {

enum class BenchClock {
  kWall,
  // CPU time of the process divided by its number of threads, for machines that others use at the
  // same time. It does not see waiting, so it flatters code that leaves its threads idle.
  kCpu,
};

inline double seconds_now(BenchClock clock, int num_threads) {
  timespec now = {};
  clock_gettime(clock == BenchClock::kWall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &now);
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return clock == BenchClock::kWall ? seconds : seconds / num_threads;
}

}  // namespace millrace::bench
