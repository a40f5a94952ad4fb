#include "common/available_memory.h"

#include <fstream>
#include <string>

namespace millrace {

int64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  std::string unit;
  while (meminfo >> name >> kib >> unit) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return int64_t{1} << 30;
}

}  // namespace millrace
