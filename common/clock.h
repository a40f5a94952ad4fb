// SPDX-License-Identifier: Apache-2.0
// Time as a dependency: everything that waits takes a Deadline, and everything that decides by time
// takes a Clock, so that tests move time by hand (tests/support/fake_clock.h) and never sleep.
#pragma once

#include <algorithm>
#include <chrono>

namespace millrace {

using Duration = std::chrono::steady_clock::duration;
using TimePoint = std::chrono::steady_clock::time_point;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;

  static const Clock& steady();
};

// A point in time by which a wait ends. There is deliberately no "never".
class Deadline {
 public:
  static Deadline after(Duration duration) {
    return Deadline(std::chrono::steady_clock::now() + duration);
  }
  static Deadline at(TimePoint when) { return Deadline(when); }

  TimePoint when() const { return when_; }
  bool passed() const { return std::chrono::steady_clock::now() >= when_; }
  // Never negative.
  Duration left() const {
    auto now = std::chrono::steady_clock::now();
    return now >= when_ ? Duration::zero() : when_ - now;
  }
  Deadline earlier_of(Deadline other) const { return Deadline(std::min(when_, other.when_)); }
  Deadline later_of(Deadline other) const { return Deadline(std::max(when_, other.when_)); }

 private:
  explicit Deadline(TimePoint when) : when_(when) {}
  TimePoint when_;
};

inline double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Seconds since construction, on the steady clock.
class Stopwatch {
 public:
  double elapsed_s() const { return seconds(std::chrono::steady_clock::now() - start_); }

 private:
  TimePoint start_ = std::chrono::steady_clock::now();
};

}  // namespace millrace
