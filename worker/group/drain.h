// SPDX-License-Identifier: Apache-2.0
// The orderly end of a group: it takes no more requests, finishes those that it has, and serves
// pages until their leases are over, or until drain_timeout after the last request. On rank 0.
#pragma once

#include <optional>

#include "common/clock.h"
#include "worker/control/control_board.h"
#include "worker/prompt/coordinator_reporter.h"
#include "worker/prompt/group_options.h"

namespace millrace::worker {

class Drain {
 public:
  // All outlive it.
  Drain(ControlBoard& board, CoordinatorReporter& reporter, const GroupOptions& options,
        const Clock& clock)
      : board_(board), reporter_(reporter), options_(options), clock_(clock) {}

  // Tells the coordinator, the first time only, and even in the middle of a prompt: otherwise the
  // coordinator would give the group one prompt after another, and the group would never end.
  void announce();
  // Whether the leases are over, or the time is up. Asked when no request runs or waits.
  bool done();

 private:
  ControlBoard& board_;  // knows the group's leases
  CoordinatorReporter& reporter_;
  const GroupOptions& options_;
  const Clock& clock_;
  bool announced_ = false;
  std::optional<TimePoint> deadline_;  // from the first done() on
};

}  // namespace millrace::worker
