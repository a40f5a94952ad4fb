// SPDX-License-Identifier: Apache-2.0
// How much memory this process could take now.
#pragma once

#include <cstdint>

namespace millrace {

// MemAvailable of /proc/meminfo (1 GiB if the system does not say), or what a container's limit
// leaves if that is less.
int64_t available_memory_bytes();

}  // namespace millrace
