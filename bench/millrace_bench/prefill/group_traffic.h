// What a run's collectives moved, and how long they took.
#pragma once

#include <boost/json/object.hpp>
#include <map>
#include <string>

#include "bench/millrace_bench/prefill/link_speed.h"
#include "worker/ranks/device_groups.h"

namespace millrace::bench {

// In collectives of one kind, of one rank or of a rank in the mean.
struct Traffic {
  double calls = 0;
  double bytes_received = 0;
  double seconds = 0;  // a collective ran, or waited for other ranks

  double gbytes_per_s() const { return seconds > 0 ? 1e-9 * bytes_received / seconds : 0; }
};

// By what was moved: "keys", "sums", "norms" (comm::DeviceCommunicator).
using GroupTraffic = std::map<std::string, Traffic>;

struct RankTraffic {
  GroupTraffic tp;
  GroupTraffic cp;
};

// Since the groups were made.
RankTraffic traffic_so_far(const worker::DeviceGroups& groups);
// What came after `earlier`.
RankTraffic operator-(const RankTraffic& later, const RankTraffic& earlier);
// Collective; all ranks have moved the same things.
Result<RankTraffic> mean_over(comm::Communicator& world, const RankTraffic& own, Deadline deadline);

boost::json::object to_json(const GroupTraffic& traffic);
// "  cp keys: 0.94 GB received a rank in 0.004 s, 240 GB/s\n", a line a kind; then what links do
// alone. Nothing where the group was silent.
std::string traffic_lines(const char* group, const GroupTraffic& traffic, const LinkSpeed& alone);

}  // namespace millrace::bench
