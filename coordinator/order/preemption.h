// Whether a waiting request runs between two layers of one that a group runs already. Between layers a
// prompt is nothing but its residual stream: it stays where it is while all layers of another, shorter
// prompt are computed, and goes on. Pure.
#pragma once

#include <span>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"

namespace millrace::coordinator {

// Such a prompt should take at most this share of what is left of the one it preempts, or else it
// waits; and all that preempt a prompt, at most this share of its own time. Together they bound how
// much later a prompt ends: by half its own time.
inline constexpr double kPreemptingShareOfRest = 0.25;
inline constexpr double kSetAsideShare = 0.5;

// Runs a prompt, nothing preempts it, and the group takes prompts between its layers.
bool is_preemptible(const Group* group);

// Of the groups that the request should preempt, the one with the shortest layers; null if it should wait,
// as where a group will be free before a layer has ended.
Group* choose_group_to_preempt(std::span<Group* const> groups, const Request& request,
                               const Forecast& forecast, TimePoint now);

}  // namespace millrace::coordinator
