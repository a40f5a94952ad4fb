// SPDX-License-Identifier: Apache-2.0
// The coordinator's requests that rank 0 has not done yet. Pure bookkeeping: no waiting, no I/O.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "protocol/control_messages.pb.h"
#include "protocol/group_messages.pb.h"
#include "worker/control/control_link.h"

namespace millrace::worker {

class RequestInbox {
 public:
  struct Pending {
    protocol::PrefillRequest request;
    TimePoint deadline;
    uint64_t together = 0;  // the same for requests that start together; 0: starts alone
  };

  // `clock` decides when deadlines pass, and outlives the inbox. `num_lanes`: how many requests may
  // run side by side; if more are sent together, each runs by itself.
  explicit RequestInbox(const Clock& clock, int num_lanes = 1)
      : clock_(clock), num_lanes_(num_lanes) {}

  void take(ControlEvent event);

  // Starts the oldest request, with those that it is to run side by side with: they are no longer
  // pending but running, alone or between two layers of the request started last. Starts none if
  // one of them has more than `max_new_tokens` new tokens. Tokens that the coordinator expects to
  // be cached do not count as new; the run finds out whether they are cached.
  std::vector<Pending> start_next(int64_t max_new_tokens = std::numeric_limits<int64_t>::max());
  // The requests started last, among those still running, have finished.
  void finish_running() { running_.pop_back(); }
  // The request that runs, alone and not between layers of another, has stopped: it is suspended
  // until resume_next() returns it or finish_suspended() is called.
  void set_running_aside();
  // The first of those suspended that the coordinator wants to go on, which then runs. none: there
  // is none.
  std::optional<std::string> resume_next();
  // One of them is to go on, or was cancelled.
  bool suspended_have_news() const;
  bool suspended_cancelled(const std::string& request_id) const;
  void finish_suspended(const std::string& request_id);
  // One of the requests started last, side by side, now runs without the others, so it can be ended
  // as any single request can.
  void run_alone(const std::string& request_id) { running_.back().alone = request_id; }
  int num_running() const { return static_cast<int>(running_.size()); }

  // Whether the coordinator no longer wants the request that runs: it said so, or it is gone. False
  // while requests run side by side, since nothing ends those.
  bool running_cancelled() const;
  // Whether the request that runs is to stop before its next layer, until that changes.
  bool running_suspended() const { return !running_.empty() && running_.back().suspended; }
  // Of the requests started last, side by side: ids of those that the coordinator no longer wants.
  const std::vector<std::string>& cancelled_side_by_side() const {
    return running_.back().cancelled;
  }
  // Ids of requests that were cancelled before they started; each is returned once.
  std::vector<std::string> take_cancelled();
  // Ids of requests whose deadline passed before they started; they are no longer pending.
  std::vector<std::string> take_expired();
  // Lease changes not yet taken, each with the time that it has waited.
  std::vector<protocol::LeaseChange> take_lease_changes();

  // Why the coordinator refuses this group; empty: it does not.
  const std::string& refusal() const { return refusal_; }
  bool draining() const { return draining_; }
  void drain() { draining_ = true; }
  bool empty() const { return pending_.empty() && lease_changes_.empty() && cancelled_.empty(); }

 private:
  struct PendingChange {
    protocol::LeaseChange change;
    TimePoint received_at;
  };
  struct Running {
    bool alone_cancelled() const;

    std::vector<std::string> ids;        // several: side by side
    std::string alone;                   // id of the one that runs alone; empty: side by side
    std::vector<std::string> cancelled;  // of ids
    bool suspended = false;              // the one that runs alone is to stop, or not to go on
  };

  void take_message(protocol::Envelope message, TimePoint received_at);
  void queue(protocol::PrefillRequest request, uint64_t together);
  protocol::LeaseChange& add_lease_change(TimePoint received_at);
  void cancel(const std::string& request_id);
  void suspend(const std::string& request_id, bool suspended);

  const Clock& clock_;
  const int num_lanes_;
  uint64_t num_together_ = 0;  // so far
  std::deque<Pending> pending_;
  std::vector<PendingChange> lease_changes_;
  std::vector<std::string> cancelled_;
  std::vector<Running> running_;    // each runs between two layers of the one before
  std::vector<Running> set_aside_;  // those that are to go on are in the order in which they do
  std::string refusal_;
  bool draining_ = false;
};

}  // namespace millrace::worker
