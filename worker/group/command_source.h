// SPDX-License-Identifier: Apache-2.0
// Makes the commands that rank 0 gives the group, from what the coordinator asked for, from the
// clock, and from whether the process is to stop. The engine's thread.
#pragma once

#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "common/clock.h"
#include "engine/engine.h"
#include "protocol/group_messages.pb.h"
#include "worker/control/control_link.h"
#include "worker/control/request_inbox.h"
#include "worker/group/drain.h"
#include "worker/prompt/group_options.h"

namespace millrace::worker {

class CommandSource {
 public:
  // All outlive it. `clock` decides when deadlines of requests pass. `stop` is set from outside the
  // group. `num_lanes`: the lanes on which prompts run side by side; 1 where they do not.
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

  // The next command between requests. Waits for kCommandInterval at most; after that the command
  // says that there is nothing to do. A suspended request goes on before a further one starts.
  protocol::GroupCommand next();
  // The next command between two layers of the request given last, or of one that runs alone. It
  // has changes of leases. It also ends the request, where the coordinator cancelled it or its
  // deadline passed; otherwise it may have another request to run before the next layer, or several
  // to run side by side. No further request is put between the layers of those. Where the
  // coordinator has suspended the request, the command says so: it stops before the next layer, and
  // set_running_aside() follows.
  protocol::GroupCommand at_boundary(const engine::LayerReport& report);
  // After the requests given last ran side by side, and before their results are reported: names
  // those that the coordinator no longer wants.
  protocol::GroupCommand after_side_by_side();
  // One of the requests given last, to run side by side, is now run by all ranks.
  void run_alone(const std::string& request_id);
  // The requests given last have ended.
  void finish_running();
  // The request that ran is suspended. It ends, or goes on, with a later command.
  void set_running_aside();

  // Why the coordinator refuses this group; empty: it does not.
  const std::string& refusal() const { return inbox_.refusal(); }

 private:
  void read(Duration longest_wait);
  void look_for_drain();
  void refuse_those_over();
  void start_next(protocol::GroupCommand& command,
                  int64_t max_new_tokens = std::numeric_limits<int64_t>::max());
  void add_lease_changes(protocol::GroupCommand& command);
  void end_suspended(protocol::GroupCommand& command);
  bool resume_next(protocol::GroupCommand& command);

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
    engine::LayerReport last_layer = {};
  };
  Result<void> check_may_continue(const Running& request, bool cancelled) const;
  // Each entry runs between two layers of the one before it. Of several requests side by side, the
  // one that runs alone comes first.
  std::vector<std::vector<Running>> running_;
  std::vector<Running> set_aside_;
};

}  // namespace millrace::worker
