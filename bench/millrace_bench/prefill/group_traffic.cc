// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/group_traffic.h"

#include <fmt/format.h>

#include <span>
#include <vector>

namespace millrace::bench {

namespace {

GroupTraffic from_stats(const comm::CommStatsByName& stats) {
  GroupTraffic traffic;
  for (const auto& [what, counted] : stats) {
    traffic[what] = {.calls = static_cast<double>(counted.calls),
                     .bytes_received = static_cast<double>(counted.bytes_received),
                     .seconds = counted.seconds};
  }
  return traffic;
}

GroupTraffic since(const GroupTraffic& later, const GroupTraffic& earlier) {
  GroupTraffic traffic;
  for (const auto& [what, now] : later) {
    const auto found = earlier.find(what);
    const Traffic before = found == earlier.end() ? Traffic() : found->second;
    if (now.calls == before.calls) continue;
    traffic[what] = {.calls = now.calls - before.calls,
                     .bytes_received = now.bytes_received - before.bytes_received,
                     .seconds = now.seconds - before.seconds};
  }
  return traffic;
}

}  // namespace

RankTraffic traffic_so_far(const engine::DeviceGroups& groups) {
  return {.tp = from_stats(groups.tp->stats()), .cp = from_stats(groups.cp->stats())};
}

RankTraffic operator-(const RankTraffic& later, const RankTraffic& earlier) {
  return {.tp = since(later.tp, earlier.tp), .cp = since(later.cp, earlier.cp)};
}

Result<RankTraffic> mean_over(comm::Communicator& world, const RankTraffic& own,
                              Deadline deadline) {
  RankTraffic mean = own;
  for (GroupTraffic* group : {&mean.tp, &mean.cp}) {
    for (auto& [what, traffic] : *group) {
      std::vector<double> values = {traffic.calls, traffic.bytes_received, traffic.seconds};
      MR_RETURN_IF_ERROR(world.all_reduce_sum(std::span(values), deadline));
      for (double& value : values) value /= world.size();
      traffic = {.calls = values[0], .bytes_received = values[1], .seconds = values[2]};
    }
  }
  return mean;
}

boost::json::object to_json(const GroupTraffic& traffic) {
  boost::json::object object;
  for (const auto& [what, moved] : traffic) {
    object[what] = {{"calls", moved.calls},
                    {"bytes_received", moved.bytes_received},
                    {"seconds", moved.seconds},
                    {"gbytes_per_s", moved.gbytes_per_s()}};
  }
  return object;
}

std::string traffic_lines(const char* group, const GroupTraffic& traffic, const LinkSpeed& alone) {
  std::string lines;
  for (const auto& [what, moved] : traffic) {
    if (moved.bytes_received == 0) continue;
    lines += fmt::format("  {} {}: {:.3g} GB received a rank in {:.3f} s, {:.3g} GB/s\n", group,
                         what, 1e-9 * moved.bytes_received, moved.seconds, moved.gbytes_per_s());
  }
  if (lines.empty()) return lines;
  return lines + fmt::format("  {} links alone: all_gather {:.3g} GB/s, all_reduce {:.3g}\n", group,
                             alone.all_gather_gbytes_per_s, alone.all_reduce_gbytes_per_s);
}

}  // namespace millrace::bench
