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

// What the limits leave now: the least of its group's and those of the groups above it; nothing
// where no limit is set. Files that were read but not lately count as free: the kernel takes their
// pages back before it refuses any.
std::optional<int64_t> cgroup_free_bytes(const CgroupFiles& files = {});

}  // namespace millrace
