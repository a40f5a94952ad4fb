// SPDX-License-Identifier: Apache-2.0
// Watches the groups: sends heartbeats, and finds groups that are lost because they fell silent or
// do not end a cancelled request. Silence is measured only in time that this process attended to:
// while the process itself is held up, messages lie unread and nobody else is late.
#pragma once

#include <string>
#include <vector>

#include "coordinator/groups/group_registry.h"
#include "coordinator/schedule/scheduler_settings.h"
#include "protocol/attended_time.h"

namespace millrace::coordinator {

class GroupWatch {
 public:
  struct Lost {
    Group* group;
    std::string why;
  };

  GroupWatch(const SchedulerSettings& settings, GroupRegistry& groups, const Clock& clock);

  Duration attended() const { return attended_.passed(); }
  void received(Group& group) const { group.last_message = attended(); }

  // To be called several times per heartbeat interval; otherwise time counts as not attended.
  std::vector<Lost> find_lost();
  // Sends a heartbeat to every group when one is due.
  void beat();

 private:
  // The patience for a cancelled prompt counts from the end of what runs between two of its layers.
  void bear_with_set_aside(Group& group) const;
  std::string why_silent(const Group& group) const;      // "" unless silent for too long
  std::string why_not_ending(const Group& group) const;  // the same

  const SchedulerSettings& settings_;
  GroupRegistry& groups_;
  const Clock& clock_;
  protocol::AttendedTime attended_;
  TimePoint last_beat_;
  uint64_t num_beats_ = 0;
};

}  // namespace millrace::coordinator
