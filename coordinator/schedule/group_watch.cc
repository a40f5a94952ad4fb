// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/group_watch.h"

#include <fmt/format.h>

namespace millrace::coordinator {

GroupWatch::GroupWatch(const SchedulerSettings& settings, GroupRegistry& groups, const Clock& clock)
    : settings_(settings),
      groups_(groups),
      clock_(clock),
      attended_(clock.now(), kLongestTick),
      last_beat_(clock.now()) {}

std::vector<GroupWatch::Lost> GroupWatch::find_lost() {
  attended_.advance(clock_.now());
  std::vector<Lost> lost;
  for (Group* group : groups_.all()) {
    bear_with_set_aside(*group);
    std::string why = why_silent(*group);
    if (why.empty()) why = why_not_ending(*group);
    if (!why.empty()) lost.push_back({group, std::move(why)});
  }
  return lost;
}

std::string GroupWatch::why_silent(const Group& group) const {
  const Duration silent = attended() - group.last_message;
  const bool hangs = silent > settings_.group_patience;
  const bool gone = silent > settings_.host_patience && !group.link->host_answers();
  if (!hangs && !gone) return {};
  return fmt::format("silent for {:.2f} s{}", seconds(silent),
                     gone ? ", and its host does not answer" : "");
}

void GroupWatch::bear_with_set_aside(Group& group) const {
  const bool between = group.preempting != nullptr || !group.side_by_side.empty();
  const auto bear = [&](const std::shared_ptr<Request>& request, bool set_aside) {
    if (request && request->cancel_sent_at && set_aside) request->cancel_sent_at = clock_.now();
  };
  bear(group.running, between);
  // The group may compute for them, even if nothing is to be seen of it.
  for (const auto& one : group.suspended) bear(one, between || group.running != nullptr);
  for (const auto& one : group.resuming) bear(one.request, true);
}

std::string GroupWatch::why_not_ending(const Group& group) const {
  for (const auto& request : group.requests()) {
    if (!request->cancel_sent_at) continue;
    const Duration waited = clock_.now() - *request->cancel_sent_at;
    if (waited < group.longest_step(*request) + settings_.cancel_patience) continue;
    return fmt::format("it did not end a cancelled request within {:.0f} s", seconds(waited));
  }
  return {};
}

void GroupWatch::beat() {
  const TimePoint now = clock_.now();
  if (now - last_beat_ < settings_.heartbeat_interval) return;
  last_beat_ = now;
  protocol::Envelope envelope;
  envelope.mutable_heartbeat()->set_sequence(++num_beats_);
  for (Group* group : groups_.all()) group->link->send(envelope);
}

}  // namespace millrace::coordinator
