// Leases on caches of prompts that ran in a lane: their ids name it, for the ranks of other lanes
// have nothing of such a lease. To anyone else an id is opaque.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace millrace::worker {

std::string new_lane_lease(int lane);
// None of a lease that all ranks hold.
std::optional<int> lane_of_lease(std::string_view lease_id);

}  // namespace millrace::worker
