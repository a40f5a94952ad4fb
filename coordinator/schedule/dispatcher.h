// Hands waiting requests to groups, in TurnOrder, and decides what becomes of one that a group gives
// back.
#pragma once

#include <memory>
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
        group_order_(group_order) {}

  // Gives idle groups what waits for them. To be called whenever a group, the queue, or the time
  // has changed.
  void dispatch();
  // A group had no room for the request or failed it by its own fault: back to the queue, or to its
  // end if no other group will do.
  void take_back(const std::shared_ptr<Request>& request, Error why);
  // `group`, which is no longer among the groups, is lost with what it runs: another one may take it,
  // unless the client has been told about this one's cache.
  void lost(Group& group, const std::string& why);

 private:
  bool any_idle() const;
  // False if no waiting request suits an idle group.
  bool start_next();
  // The same with groups whose prompt it may preempt.
  bool preempt_next();
  void give_up_on_untakable();
  // If it cannot end before its deadline any more, that is its end.
  bool expired(const std::shared_ptr<Request>& request);
  // It, and what is to run side by side with it; otherwise it has the place to itself, running or preempting.
  void start(Group& group, std::shared_ptr<Request>& place, const std::shared_ptr<Request>& request,
             const TurnOrder::Requests& in_turn);
  protocol::PrefillRequest assign(Group& group, const std::shared_ptr<Request>& request);
  void give_up(const std::shared_ptr<Request>& request);

  RequestTracker& requests_;
  GroupRegistry& groups_;
  TurnOrder& turns_;
  const Clock& clock_;
  const GroupOrder group_order_;
};

}  // namespace millrace::coordinator
