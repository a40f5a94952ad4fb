// SPDX-License-Identifier: Apache-2.0
// A clock that stands still until a test moves it. Thread-safe.
#pragma once

#include <atomic>

#include "common/clock.h"

namespace millrace::testing {

class FakeClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(since_start_.load())); }
  void advance(Duration by) { since_start_.fetch_add(by.count()); }

 private:
  // Not zero, so that code that uses a default TimePoint as "now" is noticed.
  std::atomic<Duration::rep> since_start_{Duration(std::chrono::hours(1)).count()};
};

}  // namespace millrace::testing
