// SPDX-License-Identifier: Apache-2.0
// Simulated time: a clock that jumps from event to event. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace millrace::bench {

class EventQueue final : public Clock {
 public:
  using Action = std::function<void()>;

  TimePoint now() const override { return now_; }
  double now_s() const { return seconds(now_ - TimePoint(std::chrono::hours(1))); }
  // Events at the same time run in the order in which they were added.
  void after(double delay_s, Action action) {
    const auto delay = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(delay_s));
    events_.push({now_ + delay, number_++, std::move(action)});
  }
  // False if no event is left.
  bool run_next() {
    if (events_.empty()) return false;
    const Event next = events_.top();
    events_.pop();
    now_ = next.at;
    next.action();
    return true;
  }

 private:
  struct Event {
    bool operator<(const Event& other) const {
      return std::pair(at, number) > std::pair(other.at, other.number);
    }

    TimePoint at;
    int64_t number;
    Action action;
  };

  TimePoint now_{std::chrono::hours(1)};  // not zero: a default TimePoint shows
  int64_t number_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace millrace::bench
