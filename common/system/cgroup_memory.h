// SPDX-License-Identifier: Apache-2.0
// What a container may take: the memory limits of this process's control groups, version 2 or 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace millrace {

struct CgroupFiles {
  std::string groups = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

// What the limits leave now: the least among those of the process' group and all groups above it;
// nothing if no limit is set. Pages of files that were not read lately count as free: the kernel
// reclaims them before it refuses memory.
std::optional<int64_t> cgroup_free_bytes(const CgroupFiles& files = {});

}  // namespace millrace
