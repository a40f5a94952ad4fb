// SPDX-License-Identifier: Apache-2.0
// Durations in the form that messages carry.
#pragma once

#include <cstdint>

#include "common/clock.h"

namespace millrace::coordinator {

// Whole milliseconds, rounded down; 0 for a negative duration.
inline uint64_t to_wire_ms(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return ms < 0 ? 0 : static_cast<uint64_t>(ms);
}

}  // namespace millrace::coordinator
