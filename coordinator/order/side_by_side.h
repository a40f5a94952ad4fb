// Which requests that wait run on a group at once, each on one context-parallel rank with all its
// tensor-parallel ranks, a lane; the group has a lane for each context-parallel rank. Pure.
//
// Otherwise the group would run them one after the other on all its ranks, which a few thousand new tokens use badly,
// behind a cached prefix too: part of what each prompt takes is the same on any number of ranks. Those run at once that
// save most of its time: the sum of what they take one after the other (Forecast::expect) less what the slowest takes in
// a lane (Forecast::expect_in_lane). Where that is nothing, as with prompts so long that all ranks are busy with each,
// the first runs alone.
//
// Nothing interrupts them, so all should have ended within 30 s.
//
// The first is the one whose turn it is. Others join it in the order of their turns, also past one that is too long
// for a lane: that one waits for the slowest of the lanes instead of the first alone, once, since then it is its turn.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"

namespace millrace::coordinator {

// A prompt of which another group has cached this share or more waits for that one. So it does for all ranks of this group
// where a lane would begin with what its own rank has.
inline constexpr double kCachedShareOfLanes = 0.25;

// At least two, `first` among them; or none, where it runs alone. `group` is idle, or runs a prompt that `first` is to
// preempt. `in_turn`: all that wait, in the order of their turns. Another idle group takes what would be next before it
// joins here.
std::vector<std::shared_ptr<Request>> choose_side_by_side(
    std::span<Group* const> groups, const Group& group, const std::shared_ptr<Request>& first,
    std::span<const std::shared_ptr<Request>> in_turn, const Forecast& forecast, TimePoint now);

}  // namespace millrace::coordinator
