// For what the priority of a request that waits counts. Pure.
//
// A request of a higher value, which comes later, does not wait for ever: for each kAgeingStep that it
// has waited its value falls by one, but only down to one of those that wait with it. There its turn is
// decided as theirs is. So a request of priority p comes behind one of priority q < p that arrives more
// than (p - q) steps after it only where their response ratios say so. Requests that all have one
// priority never feel it.
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
  // The value that `request`, which was added, counts as.
  int32_t value_of(const Request& request, TimePoint now) const {
    const auto aged = static_cast<int32_t>(std::ceil(aged_priority(request, now)));
    return *values_.lower_bound(std::min(aged, request.priority()));
  }

 private:
  std::set<int32_t> values_;
};

}  // namespace millrace::coordinator
