// SPDX-License-Identifier: Apache-2.0
// When a group will have room for a request that no group has room for at present. Pure.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/groups/group.h"

namespace millrace::coordinator {

// When enough leases will have ended on one of the groups, and of prompts that run there; none where
// neither is in the way. Of `records`, only those with an active lease count.
std::optional<TimePoint> next_room(const Request& request, std::span<Group* const> groups,
                                   std::span<const std::shared_ptr<Request>> records,
                                   TimePoint now);

// What to tell a client: seconds until then, at least 1 and at most 30, since leases are mostly
// released long before they end; 5 where nothing is known.
int seconds_until_room(const Request& request, std::span<Group* const> groups,
                       std::span<const std::shared_ptr<Request>> records, TimePoint now);

}  // namespace millrace::coordinator
