// SPDX-License-Identifier: Apache-2.0
// Whether a group is trusted with requests. A group that fails a request by its own fault, such as
// a full disk, rests; then a single request shows whether it has recovered. Pure; the time is
// passed in.
#pragma once

#include <algorithm>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::coordinator {

class GroupHealth {
 public:
  struct Rests {
    Duration first = std::chrono::seconds(5);  // doubles with each failure in a row
    Duration longest = std::chrono::minutes(5);
  };

  explicit GroupHealth(const Rests& rests) : rests_(rests) {}

  // Whether the failure is the group's fault, and not the request's or nobody's.
  static bool blames_group(Errc code) {
    return code == Errc::kIo || code == Errc::kCorrupt || code == Errc::kInternal;
  }

  bool rests(TimePoint now) const { return now < rests_until_; }
  Duration rest() const { return rest_; }

  void failed(TimePoint now) {
    rest_before_ = rest_;
    rest_ = rest_ == Duration::zero() ? rests_.first : std::min(2 * rest_, rests_.longest);
    rests_until_ = now + rest_;
  }
  void served() {
    rest_ = Duration::zero();
    rests_until_ = TimePoint();
  }
  // The last failure was the request's after all.
  void clear() {
    rest_ = rest_before_;
    rests_until_ = TimePoint();
  }

 private:
  Rests rests_;
  Duration rest_{};  // of the last failure; 0: no failure since a request was served
  Duration rest_before_{};
  TimePoint rests_until_{};
};

}  // namespace millrace::coordinator
