// SPDX-License-Identifier: Apache-2.0
// Requests whose model has lost its last group wait for one to come back, but not for ever.
#pragma once

#include <map>
#include <string>

#include "coordinator/requests/request_tracker.h"

namespace millrace::coordinator {

class OrphanWatch {
 public:
  // `patience` counts from the loss of the last group.
  OrphanWatch(Duration patience, RequestTracker& requests, const Clock& clock)
      : patience_(patience), requests_(requests), clock_(clock) {}

  void last_group_left(const std::string& model) { since_[model] = clock_.now(); }
  void group_joined(const std::string& model) { since_.erase(model); }
  // Fails requests that have waited for too long.
  void expire();

 private:
  void fail_waiting(const std::string& model);

  Duration patience_;
  RequestTracker& requests_;
  const Clock& clock_;
  std::map<std::string, TimePoint> since_;  // by model
};

}  // namespace millrace::coordinator
