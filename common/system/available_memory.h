// SPDX-License-Identifier: Apache-2.0
// How much memory this process could take now, with the limits of its control groups, version 2 or
// 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace millrace {

// MemAvailable of /proc/meminfo (1 GiB if the system does not say), or what a container's limit
// leaves if that is less.
int64_t available_memory_bytes();

struct CgroupFiles {
  std::string groups = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

// What the limits leave now: the least among those of the process' group and all groups above it;
// nothing if no limit is set. Pages of files that were not read lately count as free: the kernel
// reclaims them before it refuses memory.
std::optional<int64_t> cgroup_free_bytes(const CgroupFiles& files = {});

}  // namespace millrace
