// SPDX-License-Identifier: Apache-2.0
// What a run's collectives moved, and how long they took.
#pragma once

#include <boost/json/object.hpp>
#include <map>
#include <string>

#include "bench/millrace_bench/prefill/link_speed.h"
#include "engine/ranks/device_groups.h"

namespace millrace::bench {

// Of the collectives of one kind, for one rank or as the mean over ranks.
struct Traffic {
  double calls = 0;
  double bytes_received = 0;
  double seconds = 0;  // while a collective ran or waited for other ranks

  double gbytes_per_s() const { return seconds > 0 ? 1e-9 * bytes_received / seconds : 0; }
};

// By what was moved: "keys", "sums" or "norms" (comm::DeviceCommunicator).
using GroupTraffic = std::map<std::string, Traffic>;

struct RankTraffic {
  GroupTraffic tp;
  GroupTraffic cp;
};

// Since the groups were created.
RankTraffic traffic_so_far(const engine::DeviceGroups& groups);
// The traffic of `later` that came after `earlier`.
RankTraffic operator-(const RankTraffic& later, const RankTraffic& earlier);
// Collective. All ranks must have moved the same kinds.
Result<RankTraffic> mean_over(comm::Communicator& world, const RankTraffic& own, Deadline deadline);

boost::json::object to_json(const GroupTraffic& traffic);
// A line for each kind, "  cp keys: 0.94 GB received a rank in 0.004 s, 240 GB/s\n", and then what
// the links reach alone. Empty if the group moved nothing.
std::string traffic_lines(const char* group, const GroupTraffic& traffic, const LinkSpeed& alone);

}  // namespace millrace::bench
