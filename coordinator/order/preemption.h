// SPDX-License-Identifier: Apache-2.0
// Whether a waiting request runs between two layers of a prompt that a group already runs. Between
// layers the only state of a prompt is its residual stream. It stays in place while all layers of
// another, shorter prompt are computed; then the first prompt goes on. Pure.
#pragma once

#include <optional>
#include <span>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"

namespace millrace::coordinator {

// A preempting prompt should take at most kPreemptingShareOfRest of what is left of the prompt that
// it preempts; otherwise it waits. All that preempt one prompt may take at most kSetAsideShare of
// that prompt's own time. So a prompt ends later by at most half its own time.
inline constexpr double kPreemptingShareOfRest = 0.25;
inline constexpr double kSetAsideShare = 0.5;
// A request that outranks the running one may take more than that share of the rest. All that
// preempt a prompt may then together take as long as its own time, so that it ends after at most
// twice its own time.
inline constexpr double kSetAsideShareByPriority = 1;
// A prompt is set aside at most so often, however short the others are: each time, its next layer
// begins with caches that hold another prompt's data.
inline constexpr int kMostTimesSetAside = 16;

// Whether the request's priority lets it set the other aside: never a request of another owner.
bool outranks(const Request& request, const Request& other);

// Seconds of work left for this prompt itself, as far as is known.
double seconds_left(const Request& running, TimePoint now);

// The same for all prompts that run side by side on the group; 0 where none do.
double side_by_side_left(const Group& group, TimePoint now);

// Whether the group runs a prompt that nothing preempts, and takes others between its layers.
bool is_preemptible(const Group* group);

// Whether the prompt that `group` runs may be set aside for `for_s` seconds, for the request and
// those that run side by side with it.
bool may_set_aside(const Group& group, const Request& request, double for_s, TimePoint now);

// Seconds until the request runs on the group if it preempts the running prompt: one layer. nullopt
// where it should not.
std::optional<double> seconds_to_preempt(const Group& group, const Request& request,
                                         const Forecast& forecast, TimePoint now);

// Of the groups where the request should preempt, the one that will end it first; among equal ones,
// the one with the shortest layers. Null if it should wait, also where a group that becomes free
// would end it earlier.
Group* choose_group_to_preempt(std::span<Group* const> groups, const Request& request,
                               const Forecast& forecast, TimePoint now);

}  // namespace millrace::coordinator
