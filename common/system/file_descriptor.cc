// SPDX-License-Identifier: Apache-2.0
#include "common/system/file_descriptor.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace millrace {

int64_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;  // the usual soft limit
  const rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  const rlim_t now = ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_max : soft;
  return static_cast<int64_t>(std::min<rlim_t>(now, std::numeric_limits<int32_t>::max()));
}

}  // namespace millrace
