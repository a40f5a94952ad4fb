// SPDX-License-Identifier: Apache-2.0
#include "kvstore/kept/read_meter.h"

#include <algorithm>
#include <cmath>

namespace millrace::kvstore {

namespace {

// Reads this long ago count a third: the time of a few columns of a large model, or of one on a
// slow disk.
constexpr double kMemoryS = 0.5;
constexpr double kDoublesEveryS = 300;
// Limit of the assumed speed without recent measurements; a measured speed may be higher.
constexpr double kMostBytesPerS = 16e9;
// The speed if nothing arrives at all.
constexpr double kLeastBytesPerS = 1e6;

}  // namespace

void ReadMeter::begin() {
  const std::lock_guard lock(mutex_);
  if (num_reading_++ > 0) return;
  began_ = clock_.now();
  bytes_ = 0;
}

void ReadMeter::end(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  if (--num_reading_ > 0) return;
  const TimePoint now = clock_.now();
  const double took_s = seconds(now - began_);
  totals_.bytes += bytes_;
  totals_.seconds += took_s;
  if (took_s <= 0) return;
  const double before = believed(began_);
  const double latest = static_cast<double>(bytes_) / took_s;
  const double weight = 1 - std::exp(-took_s / kMemoryS);
  bytes_per_s_ = std::max(kLeastBytesPerS, before + weight * (latest - before));
  measured_at_ = now;
}

double ReadMeter::bytes_per_s() const {
  const std::lock_guard lock(mutex_);
  return believed(clock_.now());
}

ReadTotals ReadMeter::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

double ReadMeter::believed(TimePoint when) const {
  const double age_s = std::max(0.0, seconds(when - measured_at_));
  return std::max(bytes_per_s_,
                  std::min(kMostBytesPerS, bytes_per_s_ * std::exp2(age_s / kDoublesEveryS)));
}

}  // namespace millrace::kvstore
