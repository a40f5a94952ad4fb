// SPDX-License-Identifier: Apache-2.0
// Hands waiting requests to groups, in TurnOrder, and decides what becomes of one that a group
// gives back.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "coordinator/groups/group_registry.h"
#include "coordinator/order/group_by_end.h"
#include "coordinator/order/turn_order.h"
#include "coordinator/requests/request_tracker.h"

namespace millrace::coordinator {

class Dispatcher {
 public:
  Dispatcher(RequestTracker& requests, GroupRegistry& groups, TurnOrder& turns, const Clock& clock,
             GroupOrder group_order = GroupOrder::kSoonestEnd)
      : requests_(requests),
        groups_(groups),
        turns_(turns),
        clock_(clock),
        group_order_(group_order),
        last_noted_(clock.now()),
        knows_groups_from_(clock.now()) {}

  // Gives waiting requests to idle groups. To be called whenever a group, the queue, or the time
  // has changed.
  void dispatch();
  // A group had no room for the request or failed it by its own fault: the request goes back to the
  // queue, or fails if no other group can take it and no room is to come soon.
  void take_back(const std::shared_ptr<Request>& request, Error why);
  // `group`, which is no longer among the groups, is lost with what it runs. Another group may take
  // that, unless the client has been told about this group's cache. What was sent to it right after
  // this process had not run for a while, and it had not begun with, waits for its return.
  void lost(Group& group, const std::string& why);

 private:
  bool any_idle() const;
  // False if no waiting request suits an idle group.
  bool start_next();
  // The same, but by preempting what a group runs.
  bool preempt_next();
  void give_up_on_untakable();
  void note_time();
  // Whether a request that a group gave back may still find one.
  bool may_be_taken(const Request& request, std::span<Group* const> all) const;
  // Ends the request, and returns true, if it can no longer end before its deadline.
  bool expired(const std::shared_ptr<Request>& request);
  // Starts the request and what is to run side by side with it. If nothing is, the request has
  // `place`, running or preempting, to itself.
  void start(Group& group, std::shared_ptr<Request>& place, const std::shared_ptr<Request>& request,
             const TurnOrder::Requests& in_turn);
  protocol::PrefillRequest assign(Group& group, const std::shared_ptr<Request>& request);
  void give_up(const std::shared_ptr<Request>& request);

  RequestTracker& requests_;
  GroupRegistry& groups_;
  TurnOrder& turns_;
  const Clock& clock_;
  const GroupOrder group_order_;
  TimePoint last_noted_;
  TimePoint knows_groups_from_;
};

}  // namespace millrace::coordinator
