// SPDX-License-Identifier: Apache-2.0
// Times in the forms that others read.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/clock.h"

namespace millrace::coordinator {

// Calendar time. It may jump, so nothing is decided by it.
inline int64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

// Whole milliseconds, rounded down; 0 for a negative duration.
inline uint64_t to_wire_ms(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return ms < 0 ? 0 : static_cast<uint64_t>(ms);
}

}  // namespace millrace::coordinator
