// SPDX-License-Identifier: Apache-2.0
// Bounds the log lines of one kind that others can cause, such as clients that nobody knows: after
// a few, one line in ten seconds, which says how many events it stands for. Any thread.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"

namespace millrace {

class PacedLine {
 public:
  struct Pace {
    Duration pause = std::chrono::seconds(10);
    int burst = 1;  // lines that need not wait, if none came for a while
  };

  PacedLine() = default;
  explicit PacedLine(const Pace& pace) : pace_(pace) {}

  // One event more. If a line is due now: how many events, this one included, it stands for.
  std::optional<int64_t> due(TimePoint now = Clock::steady().now()) {
    const std::lock_guard lock(mutex_);
    ++untold_;
    // Each line takes a pause from a store that holds `burst` of them.
    const TimePoint empty_since = std::max(empty_until_, now - pace_.burst * pace_.pause);
    if (empty_since + pace_.pause > now) return std::nullopt;
    empty_until_ = empty_since + pace_.pause;
    return std::exchange(untold_, 0);
  }

  // For the end of a line that stands for `num_events`.
  static std::string others(int64_t num_events) {
    return num_events == 1
               ? ""
               : fmt::format(" ({} more like it since the last such line)", num_events - 1);
  }

 private:
  const Pace pace_;
  std::mutex mutex_;
  int64_t untold_ = 0;
  TimePoint empty_until_ = TimePoint::min() + std::chrono::hours(1);
};

}  // namespace millrace
