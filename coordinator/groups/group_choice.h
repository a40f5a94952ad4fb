// SPDX-License-Identifier: Apache-2.0
// Which group gets a request. Pure.
#pragma once

#include <span>
#include <vector>

#include "coordinator/groups/group.h"

namespace millrace::coordinator {

// The idle group to send the request to: the one with the most room or, where no group claims to
// have room, one that is worth asking all the same. Null if the request should wait.
Group* choose_group(std::span<Group* const> groups, const Request& request, TimePoint now);

// The idle groups with room for the request, none of which rests or has given it back too often.
std::vector<Group*> willing_groups(std::span<Group* const> groups, const Request& request,
                                   TimePoint now);

// Whether the group, idle or busy, is one to send the request to if it has cached `cached_tokens`
// of it.
bool may_take(const Group& group, const Request& request, int64_t cached_tokens, TimePoint now);

// Whether there is a group that the request may still be sent to after others have given it back:
// one that has room, or has not been asked. A busy group is asked once it is idle, whatever room it
// has now.
bool has_untried_group(std::span<Group* const> groups, const Request& request);

// Whether there is a group that would be asked if it had room.
bool has_group_to_ask_again(std::span<Group* const> groups, const Request& request);

}  // namespace millrace::coordinator
