// What a run's collectives moved, and how long they took.
#pragma once

#include <boost/json/object.hpp>
#include <span>
#include <string>

#include "bench/millrace_bench/link_speed.h"
#include "worker/device_groups.h"

namespace millrace::bench {

// In the collectives of one group, of one rank or of a rank in the mean.
struct GroupTraffic {
  double calls = 0;
  double bytes_received = 0;
  double seconds = 0;  // a collective ran, or waited for other ranks

  double gbytes_per_s() const { return seconds > 0 ? 1e-9 * bytes_received / seconds : 0; }
};

struct RankTraffic {
  GroupTraffic tp;
  GroupTraffic cp;
};

// Since the groups were made.
RankTraffic traffic_so_far(const worker::DeviceGroups& groups);
RankTraffic operator-(const RankTraffic& later, const RankTraffic& earlier);
RankTraffic mean(std::span<const RankTraffic> ranks);

boost::json::object to_json(const GroupTraffic& traffic);
// "cp: 0.94 GB received a rank in 0.004 s, 240 GB/s; alone all_gather 310 GB/s, all_reduce 295\n",
// or nothing where the group was silent.
std::string traffic_line(const char* group, const GroupTraffic& traffic, const LinkSpeed& alone);

}  // namespace millrace::bench
