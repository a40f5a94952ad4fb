// What rank 0 tells the group next: made from what the coordinator asked for, what the clock says,
// and whether the process is to stop. The engine's thread.
#pragma once

#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "common/clock.h"
#include "protocol/group_messages.pb.h"
#include "worker/control/control_link.h"
#include "worker/control/request_inbox.h"
#include "worker/engine/engine.h"
#include "worker/group/drain.h"
#include "worker/prompt/group_options.h"

namespace millrace::worker {

class CommandSource {
 public:
  // All outlive it. `clock`: by which deadlines of requests pass. `stop`: from outside the group. `num_lanes`: on
  // which prompts run side by side; 1 where they do not.
  CommandSource(ControlLink& link, CoordinatorReporter& reporter, Drain& drain,
                const GroupOptions& options, const std::atomic<bool>& stop, const Clock& clock,
                int num_lanes = 1)
      : link_(link),
        reporter_(reporter),
        drain_(drain),
        options_(options),
        stop_(stop),
        clock_(clock),
        num_lanes_(num_lanes),
        inbox_(clock, num_lanes) {}

  // Between requests. Waits for kCommandInterval at most, then there is nothing to do.
  protocol::GroupCommand next();
  // Between the layers of the request given last, or of one that runs alone: changes of leases, and its end where the coordinator
  // cancelled it or its deadline passed, or another request, to run before the next layer, or several, side by side. What
  // runs so is not itself interrupted.
  protocol::GroupCommand at_boundary(const LayerReport& report);
  // After the requests that were given last ran side by side, before anybody hears of it: names those that the
  // coordinator no longer wants.
  protocol::GroupCommand after_side_by_side();
  // One of the requests that were given last, to run side by side, is run by all ranks now.
  void run_alone(const std::string& request_id);
  // What was given last is over.
  void finish_running();

  // Why the coordinator will not have this group; empty: it will.
  const std::string& refusal() const { return inbox_.refusal(); }

 private:
  void read(Duration longest_wait);
  void look_for_drain();
  void refuse_those_over();
  void start_next(protocol::GroupCommand& command,
                  int64_t max_new_tokens = std::numeric_limits<int64_t>::max());
  void add_lease_changes(protocol::GroupCommand& command);
  Result<void> may_go_on(const LayerReport& report) const;

  ControlLink& link_;
  CoordinatorReporter& reporter_;
  Drain& drain_;
  const GroupOptions& options_;
  const std::atomic<bool>& stop_;
  const Clock& clock_;
  const int num_lanes_;
  int next_lane_ = 0;  // in turn, so that the ranks' stores fill alike
  RequestInbox inbox_;
  struct Running {
    std::string id;
    TimePoint deadline;
  };
  // Each between two layers of the one before; of several side by side the one that runs alone is the first.
  std::vector<std::vector<Running>> running_;
};

}  // namespace millrace::worker
