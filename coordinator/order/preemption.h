// Whether a waiting request runs between two layers of one that a group runs already. Between layers a
// prompt is nothing but its residual stream: it stays where it is while all layers of another, shorter
// prompt are computed, and goes on. Pure.
#pragma once

#include <optional>
#include <span>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"

namespace millrace::coordinator {

// Such a prompt should take at most this share of what is left of the one it preempts, or else it
// waits; and all that preempt a prompt, at most this share of its own time. Together they bound how
// much later a prompt ends: by half its own time.
inline constexpr double kPreemptingShareOfRest = 0.25;
inline constexpr double kSetAsideShare = 0.5;
// One that outranks the other may take more than that share of the rest: all that preempt it, as long
// as its own time, which ends it after twice that.
inline constexpr double kSetAsideShareByPriority = 1;
// So often, whatever it takes: each time the layer after it begins with caches that are another's.
inline constexpr int kMostTimesSetAside = 16;

// Whether the request's priority sets the other aside: never another owner's.
bool outranks(const Request& request, const Request& other);

// Seconds until what the group has to do for this prompt of its own is done, as far as is known.
double seconds_left(const Request& running, TimePoint now);

// The same of those that run side by side, of all; 0 where none do.
double side_by_side_left(const Group& group, TimePoint now);

// Runs a prompt, nothing preempts it, and the group takes prompts between its layers.
bool is_preemptible(const Group* group);

// Whether what `group` runs may be set aside so many seconds for the request, and those beside it.
bool may_set_aside(const Group& group, const Request& request, double for_s, TimePoint now);

// Seconds until the request runs on the group if it preempts what runs there: a layer. Nothing where it
// should not.
std::optional<double> seconds_to_preempt(const Group& group, const Request& request,
                                         const Forecast& forecast, TimePoint now);

// Of the groups that the request should preempt, the one that will have ended it first: among equal ones
// that with the shortest layers. Null if it should wait, as where a group that will be free ends it
// earlier.
Group* choose_group_to_preempt(std::span<Group* const> groups, const Request& request,
                               const Forecast& forecast, TimePoint now);

}  // namespace millrace::coordinator
