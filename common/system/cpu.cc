// SPDX-License-Identifier: Apache-2.0
#include "common/system/cpu.h"

#include <sched.h>

#include <algorithm>

namespace millrace {

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

void empty_upper_halves() {
#ifdef __x86_64__
  static const bool has_them = __builtin_cpu_supports("avx") != 0;
  if (has_them) asm volatile("vzeroupper");  // nothing here is compiled to use them
#endif
}

}  // namespace millrace
