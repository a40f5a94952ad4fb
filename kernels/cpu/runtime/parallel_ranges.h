// SPDX-License-Identifier: Apache-2.0
// The parallel loop of the CPU operations.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace millrace::kernels::cpu {

// libgomp is not instrumented, so ThreadSanitizer does not see that a parallel region begins after
// its caller's writes and ends before its caller's reads. These functions tell it; in other builds
// they do nothing.
#if defined(__SANITIZE_THREAD__)
#define MR_NO_SANITIZE_THREAD __attribute__((no_sanitize("thread")))
inline void order_before(void* region) {
  __tsan_release(region);
}
inline void order_after(void* region) {
  __tsan_acquire(region);
}
#else
#define MR_NO_SANITIZE_THREAD
inline void order_before(void*) {}
inline void order_after(void*) {}
#endif

// Cuts [0, count) into at most `num_threads` consecutive ranges and calls body(begin, end) for each
// on a thread of its own. The ranges depend only on the two numbers.
template <typename Body>
MR_NO_SANITIZE_THREAD void parallel_ranges(int64_t count, int64_t num_threads, const Body& body) {
  const int64_t num_ranges = std::min(count, num_threads);
  if (num_ranges <= 0) return;
  if (num_ranges == 1) {
    body(int64_t{0}, count);
    return;
  }
  char region = 0;
  order_before(&region);
#pragma omp parallel for num_threads(static_cast <int>(num_ranges)) schedule(static, 1)
  for (int64_t range = 0; range < num_ranges; ++range) {
    order_after(&region);
    body(count * range / num_ranges, count * (range + 1) / num_ranges);
    order_before(&region);
  }
  order_after(&region);
}

#undef MR_NO_SANITIZE_THREAD

}  // namespace millrace::kernels::cpu
