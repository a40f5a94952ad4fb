// SPDX-License-Identifier: Apache-2.0
// How slowly the body of a request may arrive. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/clock.h"

namespace millrace::coordinator {

struct BodyPace {
  Duration piece = std::chrono::seconds(20);  // for the next piece
  Duration whole = std::chrono::minutes(10);
  // On average, once `piece` has passed; 0: no minimum.
  uint64_t min_bytes_per_s = 16 << 10;

  // When the next piece must be there, if the body began at `began` and `num_bytes` have arrived.
  TimePoint next_due(TimePoint began, TimePoint now, uint64_t num_bytes) const {
    TimePoint due = std::min(now + piece, began + whole);
    if (min_bytes_per_s == 0) return due;
    const std::chrono::duration<double> paid_for(static_cast<double>(num_bytes) /
                                                 static_cast<double>(min_bytes_per_s));
    return std::min(due, began + piece + std::chrono::duration_cast<Duration>(paid_for));
  }
};

}  // namespace millrace::coordinator
