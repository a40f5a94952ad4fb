// The end of a group in good order: it takes no more requests, finishes those that it has, and
// serves pages until their leases are over, or drain_timeout after the last request. Rank 0's.
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

  // The coordinator hears of it the first time, also in the middle of a prompt: it has more of
  // them, and a group that is given one after the other would never end.
  void announce();
  // Asked when nothing runs and nothing waits: whether the leases are over, or time is.
  bool done();

 private:
  ControlBoard& board_;  // which knows the leases of all ranks
  CoordinatorReporter& reporter_;
  const GroupOptions& options_;
  const Clock& clock_;
  bool announced_ = false;
  std::optional<TimePoint> deadline_;  // from the first done() on
};

}  // namespace millrace::worker
