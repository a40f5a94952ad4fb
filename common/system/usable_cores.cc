// SPDX-License-Identifier: Apache-2.0
#include "common/system/usable_cores.h"

#include <sched.h>

#include <algorithm>

namespace millrace {

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(1, CPU_COUNT(&cores));
}

}  // namespace millrace
