// SPDX-License-Identifier: Apache-2.0
// Which waiting requests a group runs at once, each in a lane: one context-parallel rank with all
// its tensor-parallel ranks. A group has one lane for each context-parallel rank. Pure.
//
// Otherwise the group would run them one after the other on all its ranks. A few thousand new
// tokens use these badly, behind a cached prefix too, because part of each prompt's time is the
// same on any number of ranks. The set that saves the most of the group's time runs at once. What
// it saves is the sum of the times one after the other (Forecast::expect) less the time of the
// slowest in a lane (Forecast::expect_in_lane). Where nothing is saved, as with prompts so long
// that each keeps all ranks busy, the first runs alone.
//
// Nothing interrupts prompts in lanes, so all should have ended within 30 s.
//
// The first is the request whose turn it is. Others join it in the order of their turns, also past
// one that is too long for a lane. That one then waits for the slowest lane instead of for the
// first prompt alone, but only once, since then it is its turn.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"

namespace millrace::coordinator {

// A prompt of which another group has cached at least this share waits for that group. A prompt of
// which this group has cached as much waits for all its ranks if a lane could begin only with what
// its own rank has.
inline constexpr double kCachedShareOfLanes = 0.25;

// At least two requests, `first` among them; or none where `first` runs alone. `group` is idle, or
// runs a prompt that `first` is to preempt. `in_turn`: all waiting requests, in the order of their
// turns. Each other idle group takes the next one in turn before any joins here.
std::vector<std::shared_ptr<Request>> choose_side_by_side(
    std::span<Group* const> groups, const Group& group, const std::shared_ptr<Request>& first,
    std::span<const std::shared_ptr<Request>> in_turn, const Forecast& forecast, TimePoint now);

}  // namespace millrace::coordinator
