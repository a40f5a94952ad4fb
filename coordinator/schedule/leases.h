// SPDX-License-Identifier: Apache-2.0
// The leases on finished caches: clients ask for them, groups keep them, time ends them. Records that
// share a prefill have a lease each, and the group keeps the cache until the last of them ends.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

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

  // A record has got a lease on a cache that others have one on, too: the group is told to keep it
  // for as long as any.
  void share(const Request& request);
  // The lease of `request` ends because other records have taken it over; the group is not told.
  void pass_on(Request& request);

  // What groups say. An error means that the group breaks the protocol.
  Result<void> answered(Group& group, const protocol::LeaseReply& message);
  // The group holds a lease from before this process started, or from before the group reconnected.
  Result<void> reported(Group& group, protocol::LeaseHeld message);

  void expire();
  // The group is gone. Its caches may still be there when it reconnects under the same id.
  void lose(const std::string& group_id);
  void restore(const std::string& group_id);

 private:
  using Holders = std::vector<std::shared_ptr<Request>>;

  Result<Request*> find_active(const std::string& id, const std::string& lease_id);
  // Ends a lease whose cache is not needed any more as far as this record is concerned.
  void end(Request& request, LeaseState how);
  // The records with a lease on the cache that `request` has one on, without it.
  Holders others(const Request& request) const;
  bool is_last(const Request& request) const;
  // How long the group has to keep the cache for other records than `request`.
  Duration left_for_others(const Request& request) const;
  void send_renewal(Group& group, const Request& request, Duration lease,
                    std::shared_ptr<Request> caller);
  void end_shared(const Group& group, const protocol::LeaseReply& message);
  // Whose renewal the group has answered; null: nobody's.
  std::shared_ptr<Request> take_caller(const Group& group, const protocol::LeaseReply& message);

  RequestTracker& requests_;
  GroupRegistry& groups_;
  const Clock& clock_;
  CoordinatorMetrics& metrics_;
  // Renewals that were sent and not answered, by group and by id there, in the order of the answers.
  // Null: not for a client.
  std::map<std::pair<std::string, std::string>, std::deque<std::shared_ptr<Request>>> calls_;
};

}  // namespace millrace::coordinator
