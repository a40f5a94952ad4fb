// SPDX-License-Identifier: Apache-2.0
#include "common/system/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "common/system/cgroup_memory.h"

namespace millrace {

namespace {

int64_t available_on_machine() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  std::string unit;
  while (meminfo >> name >> kib >> unit) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return int64_t{1} << 30;
}

}  // namespace

int64_t available_memory_bytes() {
  const int64_t machine = available_on_machine();
  return std::min(machine, cgroup_free_bytes().value_or(machine));
}

}  // namespace millrace
