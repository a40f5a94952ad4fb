// SPDX-License-Identifier: Apache-2.0
// How malloc allocates large blocks.
#pragma once

#include <cstddef>

namespace millrace {

// From here on each block of at least this many bytes is a mapping of its own, which goes back to
// the system once it is freed.
inline constexpr size_t kLargeBlockBytes = size_t{256} << 10;

// By default glibc takes blocks as large as any freed before, up to 32 MiB, from its heap. What
// prompts of many lengths leave there lies between small blocks that stay: half of a rank's heap of
// 64 MiB after seven minutes of tests/soak, and growing. Other C libraries are left as they are.
// Call it first in main, because what the heap has left by then is used first.
void map_large_blocks();

}  // namespace millrace
