// SPDX-License-Identifier: Apache-2.0
#include "common/system/large_blocks.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace millrace {

void map_large_blocks() {
#ifdef __GLIBC__
  // Setting any value stops the threshold from growing.
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLargeBlockBytes));
#endif
}

}  // namespace millrace
