// SPDX-License-Identifier: Apache-2.0
// The settings of the scheduler.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/clock.h"
#include "coordinator/groups/group_health.h"
#include "coordinator/order/group_by_end.h"
#include "coordinator/order/turn_order.h"

namespace millrace::coordinator {

// Twice the longest time that the server lets pass between two ticks. Where more passes, the process
// did not run, and nobody else was late (protocol/attended_time.h).
inline constexpr std::chrono::milliseconds kLongestTick{100};

struct SchedulerSettings {
  QueueOrder queue_order = QueueOrder::kFair;
  GroupOrder group_order = GroupOrder::kSoonestEnd;
  // Whether requests go to groups that have cached their prefixes.
  bool routes_by_prefix = true;
  int64_t max_queued_requests = 256;
  int64_t max_queued_bytes = 1ll << 30;
  int64_t max_ended_records = 4096;
  Duration keep_ended = std::chrono::minutes(5);
  Duration default_deadline = std::chrono::minutes(10);
  Duration default_lease = std::chrono::minutes(1);
  Duration heartbeat_interval = std::chrono::milliseconds(250);
  // A group counts as lost after this silence, not counting time in which this process did not run.
  // If a process dies, its connection shows it. This setting is for processes that hang, and must
  // tolerate the delays of a busy machine.
  Duration group_patience = std::chrono::seconds(10);
  // The same, if the group's host does not acknowledge anything either.
  Duration host_patience = std::chrono::seconds(5);
  GroupHealth::Rests rests;
  // How long requests wait for a group of their model to come back before they fail.
  Duration group_return = std::chrono::seconds(30);
  // How long a group may take to end a cancelled request before it counts as lost, on top of
  // Group::longest_step: its ranks have to meet once more.
  Duration cancel_patience = std::chrono::minutes(1);
};

}  // namespace millrace::coordinator
