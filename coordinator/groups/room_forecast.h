// SPDX-License-Identifier: Apache-2.0
// When a group will have room for a request that no group has room for at present. Pure.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "coordinator/groups/group.h"

namespace millrace::coordinator {

// Seconds until enough leases have ended on one of the groups, at least 1 and at most an hour; 5
// where no lease is in the way. Of `records`, only those with an active lease count.
int seconds_until_room(const Request& request, std::span<Group* const> groups,
                       std::span<const std::shared_ptr<Request>> records, TimePoint now);

}  // namespace millrace::coordinator
