// What this process could take now.
#pragma once

#include <cstdint>

namespace millrace {

// MemAvailable of /proc/meminfo (1 GiB where the system does not say), or what a container's limit
// leaves where that is less.
int64_t available_memory_bytes();

}  // namespace millrace
