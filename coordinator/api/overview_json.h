// SPDX-License-Identifier: Apache-2.0
// What the service does now, for people who look at it: groups, the queue, running and ended
// requests; and of one request, what its heads attended to. No prompts, answers, lease ids or
// addresses. Bounded: lists are cut, and their whole lengths are given. Pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "coordinator/api/shown_names.h"
#include "coordinator/groups/group_registry.h"
#include "coordinator/order/turn_order.h"
#include "coordinator/requests/request_tracker.h"

namespace millrace::coordinator {

// How many entries of each list are shown at most.
inline constexpr size_t kMostGroupsShown = 64;
inline constexpr size_t kMostRunningShown = 128;
inline constexpr size_t kMostQueuedShown = 64;

// All three belong to one Scheduler.
struct OverviewParts {
  const GroupRegistry& groups;
  const RequestTracker& requests;
  const TurnOrder& turns;
};

// {"version", "num_groups", "num_running", "num_queued", "groups": [...], "running": [...],
//  "queued": [in the order of their turns], "ended": [the latest first]}.
std::string overview_text(const OverviewParts& parts, std::string_view version,
                          const ShownNames& names, TimePoint now);

// The request with this id; where ids are hidden, of those that the overview shows. Null: there is
// none.
std::shared_ptr<const Request> find_shown(const OverviewParts& parts, const ShownNames& names,
                                          const std::string& id);

// {"request_id", "model", "num_tokens", "num_layers", "density": [by layer], "recall_by_head",
// "density_by_head"}: of the layers that are done. Shares have four decimals; one that is not
// finite is null.
std::string layers_text(const Request& request, const ShownNames& names);

}  // namespace millrace::coordinator
