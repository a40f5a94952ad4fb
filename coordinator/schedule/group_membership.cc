// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/group_membership.h"

#include "coordinator/text/time_forms.h"

namespace millrace::coordinator {

GroupMembership::GroupMembership(const SchedulerSettings& settings, GroupRegistry& groups,
                                 Dispatcher& dispatcher, Leases& leases, OrphanWatch& orphans,
                                 CoordinatorMetrics& metrics)
    : settings_(settings),
      groups_(groups),
      dispatcher_(dispatcher),
      leases_(leases),
      orphans_(orphans),
      metrics_(metrics) {}

Result<void> GroupMembership::join(const protocol::Register& description, GroupLink& link,
                                   Duration attended) {
  const std::string& id = description.group_id();
  if (auto older = groups_.remove(id)) {
    older->link->close("the group has opened another connection");
    lose(std::move(older), "it opened another connection");
  }
  const auto added = groups_.add(description, link, attended);
  if (!added.ok()) return added.error();
  orphans_.group_joined(description.model().name());
  metrics_.groups(groups_.size());
  leases_.restore(id);
  greet(link);
  return {};
}

void GroupMembership::greet(GroupLink& link) const {
  protocol::Envelope envelope;
  auto& reply = *envelope.mutable_register_reply();
  reply.set_heartbeat_interval_ms(static_cast<uint32_t>(to_wire_ms(settings_.heartbeat_interval)));
  reply.set_takes_cached_prefixes(settings_.routes_by_prefix);
  reply.set_patience_ms(to_wire_ms(settings_.group_patience));
  link.send(envelope);
}

void GroupMembership::leave(const std::string& group_id, const GroupLink& link,
                            const std::string& why) {
  const Group* group = groups_.find(group_id);
  if (group == nullptr || group->link != &link) return;
  lose(groups_.remove(group_id), why);
}

void GroupMembership::drop(Group& group, const std::string& why) {
  group.link->close(why);
  const std::string id = group.description.group_id();  // a copy: the group dies with its entry
  lose(groups_.remove(id), why);
}

void GroupMembership::lose(std::unique_ptr<Group> group, const std::string& why) {
  const protocol::Register& who = group->description;
  metrics_.groups(groups_.size());
  metrics_.group_lost();
  metrics_.group_gone(who.group_name());
  dispatcher_.lost(*group, why);
  leases_.lose(who.group_id());
  const std::string& model = who.model().name();
  if (groups_.offers().count(model) == 0) orphans_.last_group_left(model);
}

}  // namespace millrace::coordinator
