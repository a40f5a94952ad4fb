// SPDX-License-Identifier: Apache-2.0
// The leases on finished caches: clients ask for them, groups keep them, time ends them.
#pragma once

#include <string>

#include "coordinator/groups/group_registry.h"
#include "coordinator/requests/request_tracker.h"

namespace millrace::coordinator {

class Leases {
 public:
  Leases(RequestTracker& requests, GroupRegistry& groups, const Clock& clock,
         CoordinatorMetrics& metrics)
      : requests_(requests), groups_(groups), clock_(clock), metrics_(metrics) {}

  // Sends the wish to the group; its answer arrives as Request::lease_answer. Until then the lease
  // does not expire, and another renewal gets the same answer.
  Result<void> renew(const std::string& id, const std::string& lease_id, Duration lease);
  // Takes effect at once; the group is told.
  Result<void> release(const std::string& id, const std::string& lease_id);

  // What groups say. An error means that the group breaks the protocol.
  Result<void> answered(Group& group, const protocol::LeaseReply& message);
  // The group holds a lease from before this process started, or from before the group reconnected.
  Result<void> reported(Group& group, protocol::LeaseHeld message);

  void expire();
  // The group is gone. Its caches may still be there when it reconnects under the same id.
  void lose(const std::string& group_id);
  void restore(const std::string& group_id);

 private:
  Result<Request*> find_active(const std::string& id, const std::string& lease_id);
  void end(Request& request, LeaseState how);

  RequestTracker& requests_;
  GroupRegistry& groups_;
  const Clock& clock_;
  CoordinatorMetrics& metrics_;
};

}  // namespace millrace::coordinator
