// Hands waiting requests to groups, and decides what becomes of one that a group gives back.
#pragma once

#include <memory>

#include "coordinator/groups/group_registry.h"
#include "coordinator/requests/request_tracker.h"

namespace millrace::coordinator {

class Dispatcher {
 public:
  Dispatcher(RequestTracker& requests, GroupRegistry& groups, const Clock& clock)
      : requests_(requests), groups_(groups), clock_(clock) {}

  // Gives idle groups what waits for them. To be called whenever a group, the queue, or the time
  // has changed.
  void dispatch();
  // A group had no room for the request or failed it by its own fault: back to the queue, or to its
  // end if no other group will do.
  void take_back(const std::shared_ptr<Request>& request, Error why);

 private:
  bool any_idle() const;
  void start(Group& group, const std::shared_ptr<Request>& request);
  void give_up(const std::shared_ptr<Request>& request);

  RequestTracker& requests_;
  GroupRegistry& groups_;
  const Clock& clock_;
};

}  // namespace millrace::coordinator
