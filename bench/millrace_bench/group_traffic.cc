#include "bench/millrace_bench/group_traffic.h"

#include <fmt/format.h>

namespace millrace::bench {

namespace {

GroupTraffic from_stats(const comm::CommStats& stats) {
  return {.calls = static_cast<double>(stats.calls),
          .bytes_received = static_cast<double>(stats.bytes_received),
          .seconds = stats.seconds};
}

GroupTraffic combined(const GroupTraffic& a, double factor, const GroupTraffic& b) {
  return {.calls = a.calls + factor * b.calls,
          .bytes_received = a.bytes_received + factor * b.bytes_received,
          .seconds = a.seconds + factor * b.seconds};
}

}  // namespace

RankTraffic traffic_so_far(const worker::DeviceGroups& groups) {
  return {.tp = from_stats(groups.tp->stats()), .cp = from_stats(groups.cp->stats())};
}

RankTraffic operator-(const RankTraffic& later, const RankTraffic& earlier) {
  return {.tp = combined(later.tp, -1, earlier.tp), .cp = combined(later.cp, -1, earlier.cp)};
}

RankTraffic mean(std::span<const RankTraffic> ranks) {
  RankTraffic mean;
  const double share = 1.0 / static_cast<double>(ranks.size());
  for (const auto& rank : ranks) {
    mean.tp = combined(mean.tp, share, rank.tp);
    mean.cp = combined(mean.cp, share, rank.cp);
  }
  return mean;
}

boost::json::object to_json(const GroupTraffic& traffic) {
  return {{"calls", traffic.calls},
          {"bytes_received", traffic.bytes_received},
          {"seconds", traffic.seconds},
          {"gbytes_per_s", traffic.gbytes_per_s()}};
}

std::string traffic_line(const char* group, const GroupTraffic& traffic, const LinkSpeed& alone) {
  if (traffic.bytes_received == 0) return {};
  return fmt::format(
      "  {}: {:.3g} GB received a rank in {:.3f} s, {:.3g} GB/s; alone all_gather {:.3g} GB/s, "
      "all_reduce {:.3g}\n",
      group, 1e-9 * traffic.bytes_received, traffic.seconds, traffic.gbytes_per_s(),
      alone.all_gather_gbytes_per_s, alone.all_reduce_gbytes_per_s);
}

}  // namespace millrace::bench
