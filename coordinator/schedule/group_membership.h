// SPDX-License-Identifier: Apache-2.0
// Lets groups join and leave, with all that follows for their requests, leases and models.
#pragma once

#include <memory>
#include <string>

#include "coordinator/groups/group_registry.h"
#include "coordinator/requests/coordinator_metrics.h"
#include "coordinator/schedule/dispatcher.h"
#include "coordinator/schedule/leases.h"
#include "coordinator/schedule/orphan_watch.h"
#include "coordinator/schedule/scheduler_settings.h"

namespace millrace::coordinator {

class GroupMembership {
 public:
  GroupMembership(const SchedulerSettings& settings, GroupRegistry& groups, Dispatcher& dispatcher,
                  Leases& leases, OrphanWatch& orphans, CoordinatorMetrics& metrics);

  // Greets the group over its link; the caller has to report a refusal. Replaces an older
  // connection of the same group.
  Result<void> join(const protocol::Register& description, GroupLink& link, Duration attended);
  // The connection has ended. Does nothing if another connection has taken the group over.
  void leave(const std::string& group_id, const GroupLink& link, const std::string& why);
  // Closes the connection of a lost group.
  void drop(Group& group, const std::string& why);

 private:
  void greet(GroupLink& link) const;
  void lose(std::unique_ptr<Group> group, const std::string& why);

  const SchedulerSettings& settings_;
  GroupRegistry& groups_;
  Dispatcher& dispatcher_;
  Leases& leases_;
  OrphanWatch& orphans_;
  CoordinatorMetrics& metrics_;
};

}  // namespace millrace::coordinator
