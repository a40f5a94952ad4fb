// Which idle group gets a request, where not all are alike: the one that should end it first (Forecast).
// Of those that end it about as soon as that one, the smallest, in ranks: larger ones stay free for long
// prompts, which gain more by them. Of equal ones the one with the most room.
//
// No prompt waits while a group that fits is idle: for a larger one that runs another it would have to be
// known that nothing better comes. Pure.
#pragma once

#include <span>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"

namespace millrace::coordinator {

// About as soon: so many times as long, or so much later, whichever is later.
inline constexpr double kAboutAsLong = 1.25;
inline constexpr double kAboutAsSoonS = 0.05;

// How groups are told apart.
enum class GroupOrder {
  kSoonestEnd,
  kMostRoom,  // without times, as in choose_group()
};

// Null if the request should wait, as choose_group() says.
Group* choose_group_by_end(std::span<Group* const> groups, const Request& request,
                           const Forecast& forecast, TimePoint now);

}  // namespace millrace::coordinator
