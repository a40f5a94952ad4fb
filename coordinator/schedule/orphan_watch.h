// SPDX-License-Identifier: Apache-2.0
// Requests whose model has lost its last group wait for one to come back, but not for ever. Time in
// which this process did not run does not count: no group could come back.
#pragma once

#include <map>
#include <string>

#include "coordinator/requests/request_tracker.h"
#include "coordinator/schedule/scheduler_settings.h"
#include "protocol/attended_time.h"

namespace millrace::coordinator {

class OrphanWatch {
 public:
  // `patience` counts from the loss of the last group.
  OrphanWatch(Duration patience, RequestTracker& requests, const Clock& clock)
      : patience_(patience),
        requests_(requests),
        clock_(clock),
        attended_(clock.now(), kLongestTick) {}

  void last_group_left(const std::string& model) { since_[model] = attended_.passed(); }
  void group_joined(const std::string& model) { since_.erase(model); }
  // Fails requests that have waited for too long. To be called at every tick.
  void expire();

 private:
  void fail_waiting(const std::string& model);

  Duration patience_;
  RequestTracker& requests_;
  const Clock& clock_;
  protocol::AttendedTime attended_;
  std::map<std::string, Duration> since_;  // by model, in attended time
};

}  // namespace millrace::coordinator
