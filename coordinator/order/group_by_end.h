// SPDX-License-Identifier: Apache-2.0
// Which idle group gets a request, where groups differ: the one that should end it first
// (Forecast). Of those that end it about as soon, the smallest by ranks: larger ones stay free for
// long prompts, which gain more from them. Of equal ones, the one with the most room.
//
// No prompt waits while a group that fits is idle. Waiting for a larger, busy group would pay only if
// no prompt came that needs that group more. Pure.
#pragma once

#include <span>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"

namespace millrace::coordinator {

// "About as soon": at most so many times as long as the soonest, or so much later, whichever is
// later.
inline constexpr double kAboutAsLong = 1.25;
inline constexpr double kAboutAsSoonS = 0.05;

// How groups are compared.
enum class GroupOrder {
  kSoonestEnd,
  kMostRoom,  // without times, as in choose_group()
};

// Null if the request should wait, as choose_group() says.
Group* choose_group_by_end(std::span<Group* const> groups, const Request& request,
                           const Forecast& forecast, TimePoint now);

}  // namespace millrace::coordinator
