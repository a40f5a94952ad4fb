// How fast a slow tier is read, measured whenever pages of cached prefixes are read from it, by prompts or ahead of them, and
// never for its own sake.
// Reads that go on at once count as one: what they bring together over the time in which there is any.
//
// An exponentially weighted mean over the time spent reading. What was not measured of late is believed to be faster,
// twice as fast every five minutes: pages that do not seem worth reading are not read, and a disk that was slow
// once, or is faster than kUnmeasuredBytesPerS, would never show it.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <mutex>

#include "common/clock.h"
#include "kvstore/pages/read_totals.h"

namespace millrace::kvstore {

// Before anything is read: a third of an NVMe disk, several times a network's.
inline constexpr double kUnmeasuredBytesPerS = 1e9;

class ReadMeter {
 public:
  // `clock` outlives the meter.
  explicit ReadMeter(const Clock& clock) : clock_(clock), measured_at_(clock.now()) {}

  void begin();
  // Of a read that began: what it brought. 0 where it was given up.
  void end(int64_t bytes);
  // Above 0.
  double bytes_per_s() const;
  // Since the beginning, over the time in which there was any read.
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
