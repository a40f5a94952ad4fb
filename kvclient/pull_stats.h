// What came, from where and over what.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace millrace::kvclient {

struct PullStats {
  int64_t pages = 0;
  int64_t bytes = 0;
  int64_t pages_by_tier[3] = {};  // device, host, disk
  int64_t corrupt_pages = 0;      // arrived wrong and were fetched again
  double seconds = 0;
  std::map<std::string, int64_t> bytes_by_transport;
};

}  // namespace millrace::kvclient
