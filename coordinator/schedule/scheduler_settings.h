// SPDX-License-Identifier: Apache-2.0
// The settings of the scheduler.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/clock.h"
#include "coordinator/groups/group_health.h"
#include "coordinator/order/group_by_end.h"
#include "coordinator/order/turn_order.h"
#include "coordinator/requests/on_disconnect.h"

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
  // Whether a request for a prompt that waits or runs is answered by that prefill.
  bool joins_prefills = true;
  OnDisconnect on_disconnect = OnDisconnect::kSuspend;  // of requests that do not say
  int64_t least_tokens_to_suspend = 16384;              // shorter prompts end
  Duration suspended_prefill = std::chrono::minutes(2);
  // For how long a prefill goes on without a client, and a result is held for one that may return.
  Duration unattended_prefill = std::chrono::minutes(10);
  Duration held_result = std::chrono::minutes(1);
  // Of one owner, both together. With none, every prefill ends with its last client.
  int64_t max_unattended = 8;
  int64_t max_unattended_tokens = 4ll << 20;
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
