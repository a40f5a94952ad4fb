// SPDX-License-Identifier: Apache-2.0
// Checks what a group says about its work before it is kept. An error means that the group breaks
// the protocol. Pure.
#pragma once

#include <string>

#include "coordinator/groups/group.h"

namespace millrace::coordinator {

// A lease is at most as long as a client may ask for; an arbitrary value from a group could
// overflow a Duration.
Result<Duration> checked_lease(const Group& group, const std::string& request_id,
                               uint64_t lease_ms);
// Bounds the lists that become metrics and answers.
Result<void> check_times(const Group& group, const protocol::PrefillDone& message);
// The error, with its message cut to what logs and answers can bear.
Error checked_error(const protocol::ErrorInfo& info);

}  // namespace millrace::coordinator
