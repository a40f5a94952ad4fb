// What the coordinator asked for and rank 0 has not done yet. Pure bookkeeping: no waiting, no I/O.
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
    uint64_t together = 0;  // the same of those that start together, 0 of others
  };

  // `clock`: by which deadlines pass; outlives the inbox. `num_lanes`: as many as may run side by side;
  // of more than that, each runs by itself.
  explicit RequestInbox(const Clock& clock, int num_lanes = 1)
      : clock_(clock), num_lanes_(num_lanes) {}

  void take(ControlEvent event);

  // The oldest request, no longer pending but running: alone, or between two layers of the one that
  // was started last; with those that it is to run side by side with. Nothing if one has more than
  // `max_new_tokens`, but for those that the coordinator foresees to be cached, which is for
  // the run to find out.
  std::vector<Pending> start_next(int64_t max_new_tokens = std::numeric_limits<int64_t>::max());
  // What was started last and has not finished.
  void finish_running() { running_.pop_back(); }
  // Of those, one runs now that the others do not: what can end a request can end it.
  void run_alone(const std::string& request_id) { running_.back().alone = request_id; }
  int num_running() const { return static_cast<int>(running_.size()); }

  // The coordinator no longer wants that: it said so, or it is gone. Nothing ends what runs side by side.
  bool running_cancelled() const;
  // Of what was started last, side by side: ids of those that it no longer wants.
  const std::vector<std::string>& cancelled_side_by_side() const {
    return running_.back().cancelled;
  }
  // Ids of requests that were cancelled before they started; each is returned once.
  std::vector<std::string> take_cancelled();
  // Ids of requests whose deadline passed before they started; they are no longer pending.
  std::vector<std::string> take_expired();
  // Each with the time that it has waited.
  std::vector<protocol::LeaseChange> take_lease_changes();

  // Why the coordinator will not have this group; empty: it will.
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
    std::vector<std::string> ids;        // several: side by side
    std::string alone;                   // that of the one that runs alone; empty: side by side
    std::vector<std::string> cancelled;  // of ids
  };

  void take_message(protocol::Envelope message, TimePoint received_at);
  void queue(protocol::PrefillRequest request, uint64_t together);
  protocol::LeaseChange& add_lease_change(TimePoint received_at);
  void cancel(const std::string& request_id);

  const Clock& clock_;
  const int num_lanes_;
  uint64_t num_together_ = 0;  // so far
  std::deque<Pending> pending_;
  std::vector<PendingChange> lease_changes_;
  std::vector<std::string> cancelled_;
  std::vector<Running> running_;  // each between two layers of the one before
  std::string refusal_;
  bool draining_ = false;
};

}  // namespace millrace::worker
