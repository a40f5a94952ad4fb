// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/room_forecast.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace millrace::coordinator {

namespace {

// Clients ask again after this, however long the leases are: most are released early.
constexpr std::chrono::seconds kLongestRetry{30};
// For a group that has neither room nor a lease, for example while pages are being read.
constexpr std::chrono::seconds kUnknownRetry{5};

struct Lease {
  TimePoint ends;
  int64_t num_tokens;
};
using Leases = std::vector<Lease>;

// The cache of a prompt that runs stays for as long as its lease will.
Lease lease_to_come(const Request& running, TimePoint now) {
  const auto expected = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::max(0.0, running.expected_s)));
  const auto lease = std::chrono::milliseconds(static_cast<int64_t>(running.options.lease_ms()));
  return {.ends = std::max(now, running.dispatched_at + expected) + lease,
          .num_tokens = running.num_tokens};
}

std::map<std::string, Leases> leases_by_group(std::span<const std::shared_ptr<Request>> records,
                                              std::span<Group* const> groups, TimePoint now) {
  std::map<std::string, Leases> out;
  std::map<const protocol::PrefillDone*, TimePoint> last_end;  // of caches with several leases
  for (const auto& record : records) {
    if (record->lease != LeaseState::kActive || !record->shares_lease) continue;
    TimePoint& last = last_end[record->result.get()];
    last = std::max(last, record->lease_ends);
  }
  for (const auto& record : records) {
    if (record->lease != LeaseState::kActive) continue;
    if (record->shares_lease) {
      const auto last = last_end.find(record->result.get());
      if (last == last_end.end() || last->second != record->lease_ends) continue;
      last_end.erase(last);
    }
    out[record->group_id].push_back({record->lease_ends, record->num_tokens});
  }
  for (const Group* group : groups) {
    for (const auto& running : group->requests()) {
      out[group->description.group_id()].push_back(lease_to_come(*running, now));
    }
  }
  for (auto& [group_id, leases] : out) {
    std::ranges::sort(leases, {}, &Lease::ends);
  }
  return out;
}

// `leases` are sorted by their ends and not empty.
TimePoint room_at(const Group& group, const Leases& leases, int64_t num_tokens) {
  int64_t free_tokens = std::max<int64_t>(0, group.free_tokens.value_or(0));
  for (const Lease& lease : leases) {
    free_tokens += lease.num_tokens;
    if (free_tokens >= num_tokens) return lease.ends;
  }
  return leases.back().ends;  // the pool is empty by then, whatever was reported
}

}  // namespace

std::optional<TimePoint> next_room(const Request& request, std::span<Group* const> groups,
                                   std::span<const std::shared_ptr<Request>> records,
                                   TimePoint now) {
  const auto by_group = leases_by_group(records, groups, now);
  std::optional<TimePoint> soonest;
  for (const Group* group : groups) {
    const auto leases = by_group.find(group->description.group_id());
    if (leases == by_group.end() || !group->takes(request.model, request.num_tokens)) continue;
    const TimePoint at = room_at(*group, leases->second, request.num_tokens);
    soonest = std::min(soonest.value_or(at), at);
  }
  return soonest;
}

int seconds_until_room(const Request& request, std::span<Group* const> groups,
                       std::span<const std::shared_ptr<Request>> records, TimePoint now) {
  const auto soonest = next_room(request, groups, records, now);
  const Duration wait = soonest ? *soonest - now : Duration(kUnknownRetry);
  return static_cast<int>(std::ceil(std::clamp(seconds(wait), 1.0, seconds(kLongestRetry))));
}

}  // namespace millrace::coordinator
