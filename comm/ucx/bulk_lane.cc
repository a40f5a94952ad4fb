// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/bulk_lane.h"

#include <algorithm>
#include <array>

namespace millrace::comm {
namespace {

constexpr std::array<std::string_view, 6> kSharedMemory = {"sysv",  "posix", "cma",
                                                           "xpmem", "knem",  "self"};

// "#   lane[1]:  3:sysv/memory.0 md[2] -> md[2]/sysv/sysdev[255] am am_bw#0": "sysv"
std::string_view transport_of_lane(std::string_view line) {
  const size_t slash = line.find('/');
  if (slash == std::string_view::npos) return {};
  const size_t colon = line.rfind(':', slash);
  if (colon == std::string_view::npos) return {};
  return line.substr(colon + 1, slash - colon - 1);
}

}  // namespace

std::string transport_of_bulk_lane(std::string_view endpoint_info) {
  while (!endpoint_info.empty()) {
    const size_t end = std::min(endpoint_info.find('\n'), endpoint_info.size() - 1);
    const std::string_view line = endpoint_info.substr(0, end);
    endpoint_info.remove_prefix(end + 1);
    if (line.find("lane[") == std::string_view::npos) continue;
    if (line.find(" am_bw#0") == std::string_view::npos) continue;
    const std::string_view name = transport_of_lane(line);
    if (name.empty()) continue;
    if (std::find(kSharedMemory.begin(), kSharedMemory.end(), name) != kSharedMemory.end()) {
      return "shm";
    }
    return std::string(name);
  }
  return "unknown";
}

}  // namespace millrace::comm
