// SPDX-License-Identifier: Apache-2.0
// Ends requests that wait or run before they are done, and tells the group that has them.
#pragma once

#include <functional>
#include <memory>

#include "coordinator/groups/group_registry.h"
#include "coordinator/requests/request_tracker.h"

namespace millrace::coordinator {

class Canceller {
 public:
  Canceller(RequestTracker& requests, GroupRegistry& groups, const Clock& clock)
      : requests_(requests), groups_(groups), clock_(clock) {}

  // The request has failed with `why` from now on; its group stays busy until it has answered.
  void cancel(const std::shared_ptr<Request>& request, Error why);
  void cancel_all(const Error& why);
  // Calls `leave` for each request whose deadline has passed, with the reason. It has to end it.
  using Leave = std::function<void(const std::shared_ptr<Request>&, Error)>;
  void expire_deadlines(const Leave& leave);

 private:
  void notify_group(const Request& request);

  RequestTracker& requests_;
  GroupRegistry& groups_;
  const Clock& clock_;
};

}  // namespace millrace::coordinator
