// Time by which a process judges the silence of another: its own, but for what it lost itself. One
// that did not run for a while, on a busy machine or stopped, has not heard what was said meanwhile,
// and may not count that as silence. Not thread-safe.
#pragma once

#include <algorithm>

#include "common/clock.h"

namespace millrace::protocol {

class AttendedTime {
 public:
  // `longest_step`: between two calls of advance(); what is longer was lost.
  AttendedTime(TimePoint now, Duration longest_step) : last_(now), longest_step_(longest_step) {}

  void advance(TimePoint now) {
    attended_ += std::min(now - last_, longest_step_);
    last_ = now;
  }
  // Since the beginning, as of the last advance().
  Duration passed() const { return attended_; }

 private:
  TimePoint last_;
  Duration longest_step_;
  Duration attended_{};
};

}  // namespace millrace::protocol
