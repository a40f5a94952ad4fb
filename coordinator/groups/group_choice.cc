// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/group_choice.h"

#include <algorithm>
#include <utility>

namespace millrace::coordinator {

namespace {

// How often a group is asked that reports room and still refuses the request.
constexpr int kMaxRefusals = 2;

// How often `group` had no room for the request; nullopt if it must not be asked again.
std::optional<int> refusals(const Group& group, const Request& request) {
  const std::string& id = group.description.group_id();
  if (!group.takes(request.model, request.num_tokens) || group.draining) return std::nullopt;
  if (request.failed_on.count(id) != 0) return std::nullopt;
  const auto refused = request.refusals.find(id);
  if (refused == request.refusals.end()) return 0;
  return refused->second < kMaxRefusals ? std::optional<int>(refused->second) : std::nullopt;
}

}  // namespace

Group* choose_group(std::span<Group* const> groups, const Request& request, TimePoint now) {
  Group* best = nullptr;
  Group* last_resort = nullptr;
  bool busy_one_will_do = false;
  for (Group* group : groups) {
    const auto refused = refusals(*group, request);
    if (!refused) continue;
    const bool rests = group->health.rests(now);
    const bool willing = group->has_room(request.num_tokens) && !rests;
    if (!group->idle()) {
      busy_one_will_do = busy_one_will_do || willing;
    } else if (willing) {
      if (best == nullptr || group->free_tokens > best->free_tokens) best = group;
    } else if (*refused == 0) {
      // A group without room comes before one that rests.
      const auto rank = [now](const Group& asked) {
        return std::pair(!asked.health.rests(now), asked.free_tokens);
      };
      if (last_resort == nullptr || rank(*group) > rank(*last_resort)) last_resort = group;
    }
  }
  if (best != nullptr) return best;
  return busy_one_will_do ? nullptr : last_resort;
}

std::vector<Group*> willing_groups(std::span<Group* const> groups, const Request& request,
                                   TimePoint now) {
  std::vector<Group*> willing;
  for (Group* group : groups) {
    if (group->idle() && may_take(*group, request, /*cached_tokens=*/0, now)) {
      willing.push_back(group);
    }
  }
  return willing;
}

bool may_take(const Group& group, const Request& request, int64_t cached_tokens, TimePoint now) {
  return refusals(group, request).has_value() && !group.health.rests(now) &&
         group.has_room(request.num_tokens - cached_tokens);
}

bool has_untried_group(std::span<Group* const> groups, const Request& request) {
  return std::any_of(groups.begin(), groups.end(), [&](const Group* group) {
    const auto refused = refusals(*group, request);
    return refused && (group->has_room(request.num_tokens) || *refused == 0);
  });
}

bool has_group_to_ask_again(std::span<Group* const> groups, const Request& request) {
  return std::any_of(groups.begin(), groups.end(),
                     [&](const Group* group) { return refusals(*group, request).has_value(); });
}

}  // namespace millrace::coordinator
