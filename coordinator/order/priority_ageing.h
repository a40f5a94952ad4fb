// SPDX-License-Identifier: Apache-2.0
// What the priority of a waiting request counts as. Pure.
//
// Requests with a higher value come later, but do not wait for ever. For each kAgeingStep that a
// request has waited, its value falls by one, but only down to the value of one that waits with it.
// Among these its turn is decided like theirs. So a request of priority p comes behind one of
// priority q < p that arrives more than (p - q) steps after it only where their response ratios say
// so. Where all requests have the same priority, ageing changes nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>

#include "coordinator/requests/request.h"

namespace millrace::coordinator {

inline constexpr Duration kAgeingStep = std::chrono::minutes(1);

// All requests age at the same rate: the order of these values never changes while they wait.
inline double aged_priority(const Request& request, TimePoint now) {
  return request.priority() - request.queue_s(now) / seconds(kAgeingStep);
}

// The priorities of requests that compete: of one owner and one model.
class WaitingPriorities {
 public:
  void add(const Request& request) { values_.insert(request.priority()); }
  // The value that `request` counts as; it must have been added.
  int32_t value_of(const Request& request, TimePoint now) const {
    const auto aged = static_cast<int32_t>(std::ceil(aged_priority(request, now)));
    return *values_.lower_bound(std::min(aged, request.priority()));
  }

 private:
  std::set<int32_t> values_;
};

}  // namespace millrace::coordinator
