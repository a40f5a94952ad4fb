// SPDX-License-Identifier: Apache-2.0
// Time by which a process judges the silence of another: its own time, without what it lost itself.
// A process that did not run for a while, because its machine was busy or it was stopped, has not
// heard what was said meanwhile and may not count that as silence. Not thread-safe.
#pragma once

#include <algorithm>

#include "common/clock.h"

namespace millrace::protocol {

class AttendedTime {
 public:
  // `longest_step`: the longest time between two calls of advance(); anything longer was lost.
  AttendedTime(TimePoint now, Duration longest_step) : last_(now), longest_step_(longest_step) {}

  void advance(TimePoint now) {
    attended_ += std::min(now - last_, longest_step_);
    last_ = now;
  }
  // Time since the beginning, as of the last advance().
  Duration passed() const { return attended_; }

 private:
  TimePoint last_;
  Duration longest_step_;
  Duration attended_{};
};

}  // namespace millrace::protocol
