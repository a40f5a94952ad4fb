// SPDX-License-Identifier: Apache-2.0
// How fast a slow tier is read. Measured whenever pages of cached prefixes are read from it, for
// prompts or ahead of them, and never for its own sake. Concurrent reads count as one: the bytes
// that all of them bring, over the time in which there is any.
//
// The speed is an exponentially weighted mean over the time spent reading. If it was not measured
// lately, the tier is assumed to be faster, twice as fast every five minutes. Otherwise pages that
// do not seem worth reading would never be read, and a disk that was slow once, or is faster than
// kUnmeasuredBytesPerS, would never show it.
// Threads: any.
#pragma once

#include <cstdint>
#include <mutex>

#include "common/clock.h"
#include "kvstore/pages/page.h"

namespace millrace::kvstore {

// Assumed before anything is read: a third of an NVMe disk's speed, several times a network's.
inline constexpr double kUnmeasuredBytesPerS = 1e9;

class ReadMeter {
 public:
  // `clock` outlives the meter.
  explicit ReadMeter(const Clock& clock) : clock_(clock), measured_at_(clock.now()) {}

  void begin();
  // Ends a read that began: the bytes it brought, 0 if it was given up.
  void end(int64_t bytes);
  // Above 0.
  double bytes_per_s() const;
  // Since construction; seconds are those in which any read was under way.
  ReadTotals totals() const;

 private:
  double believed(TimePoint when) const;

  const Clock& clock_;
  mutable std::mutex mutex_;
  int num_reading_ = 0;
  TimePoint began_;
  int64_t bytes_ = 0;  // since then
  double bytes_per_s_ = kUnmeasuredBytesPerS;
  TimePoint measured_at_;
  ReadTotals totals_;
};

}  // namespace millrace::kvstore
