// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/group_options.h"

#include <algorithm>

namespace millrace::worker {

Duration granted_lease(const GroupOptions& options, uint64_t lease_ms) {
  if (lease_ms == 0) return options.default_lease;
  const auto longest_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(options.max_lease).count();
  return std::chrono::milliseconds(std::min(lease_ms, static_cast<uint64_t>(longest_ms)));
}

}  // namespace millrace::worker
