// SPDX-License-Identifier: Apache-2.0
// Calendar time, for other systems to read. It may jump, so nothing is decided by it.
#pragma once

#include <chrono>
#include <cstdint>

namespace millrace::coordinator {

inline int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace millrace::coordinator
