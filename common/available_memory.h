// What the machine could give now.
#pragma once

#include <cstdint>

namespace millrace {

// MemAvailable of /proc/meminfo; 1 GiB where the system does not say.
int64_t available_memory_bytes();

}  // namespace millrace
