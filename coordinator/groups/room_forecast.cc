// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/room_forecast.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace millrace::coordinator {

namespace {

// Clients ask again after this, however long the leases are: most are released early.
constexpr std::chrono::hours kLongestRetry{1};
// For a group that has neither room nor a lease, for example while pages are being read.
constexpr std::chrono::seconds kUnknownRetry{5};

using Leases = std::vector<const Request*>;

std::map<std::string, Leases> leases_by_group(std::span<const std::shared_ptr<Request>> records) {
  std::map<std::string, Leases> out;
  for (const auto& record : records) {
    if (record->lease == LeaseState::kActive) out[record->group_id].push_back(record.get());
  }
  for (auto& [group_id, leases] : out) {
    std::sort(leases.begin(), leases.end(),
              [](const auto* a, const auto* b) { return a->lease_ends < b->lease_ends; });
  }
  return out;
}

// `leases` are sorted by their ends and not empty.
TimePoint room_at(const Group& group, const Leases& leases, int64_t num_tokens) {
  int64_t free_tokens = std::max<int64_t>(0, group.free_tokens.value_or(0));
  for (const Request* record : leases) {
    free_tokens += record->num_tokens;
    if (free_tokens >= num_tokens) return record->lease_ends;
  }
  return leases.back()->lease_ends;  // the pool is empty by then, whatever was reported
}

}  // namespace

int seconds_until_room(const Request& request, std::span<Group* const> groups,
                       std::span<const std::shared_ptr<Request>> records, TimePoint now) {
  const auto by_group = leases_by_group(records);
  std::optional<TimePoint> soonest;
  for (const Group* group : groups) {
    const auto leases = by_group.find(group->description.group_id());
    if (leases == by_group.end() || !group->takes(request.model, request.num_tokens)) continue;
    const TimePoint at = room_at(*group, leases->second, request.num_tokens);
    soonest = std::min(soonest.value_or(at), at);
  }
  const Duration wait = soonest ? *soonest - now : Duration(kUnknownRetry);
  return static_cast<int>(std::ceil(std::clamp(seconds(wait), 1.0, seconds(kLongestRetry))));
}

}  // namespace millrace::coordinator
