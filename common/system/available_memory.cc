// SPDX-License-Identifier: Apache-2.0
#include "common/system/available_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace millrace {

namespace fs = std::filesystem;

namespace {

// The file names of a version.
struct Version {
  std::string_view limit, usage, reclaimable;
};
constexpr Version kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};
constexpr Version kVersion2{"memory.max", "memory.current", "inactive_file"};

// Nothing if the file does not exist or says "max".
std::optional<int64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

int64_t read_field(const fs::path& path, std::string_view field) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == field) return value;
  }
  return 0;
}

std::optional<int64_t> free_in(const fs::path& group, const Version& version) {
  const auto limit = read_number(group / version.limit);
  const auto usage = read_number(group / version.usage);
  if (!limit || !usage) return std::nullopt;
  const int64_t used = *usage - read_field(group / "memory.stat", version.reclaimable);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, used));
}

bool lists_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "memory") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

// In a container the path may be the host's, while only the container's own group is mounted, at
// the root. Directories that do not exist are ignored.
std::optional<int64_t> free_up_from(const fs::path& root, fs::path path, const Version& version) {
  std::optional<int64_t> min_free;
  while (true) {
    const auto free = free_in(root / path, version);
    if (free && (!min_free || *free < *min_free)) min_free = free;
    if (path.empty()) return min_free;
    path = path.parent_path();
  }
}

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

// A line is "id:controllers:/path"; version 2 has id 0 and no controllers.
std::optional<int64_t> cgroup_free_bytes(const CgroupFiles& files) {
  std::ifstream groups(files.groups);
  std::optional<int64_t> min_free;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const auto path = fs::path(line.substr(second + 1)).relative_path();
    std::optional<int64_t> free;
    if (line.starts_with("0::")) {
      free = free_up_from(files.root, path, kVersion2);
    } else if (lists_memory(controllers)) {
      free = free_up_from(fs::path(files.root) / "memory", path, kVersion1);
    }
    if (free && (!min_free || *free < *min_free)) min_free = free;
  }
  return min_free;
}

int64_t available_memory_bytes() {
  const int64_t machine = available_on_machine();
  return std::min(machine, cgroup_free_bytes().value_or(machine));
}

}  // namespace millrace
