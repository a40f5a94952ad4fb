// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/side_by_side.h"

#include <algorithm>

#include "coordinator/groups/group_choice.h"
#include "coordinator/order/preemption.h"
#include "protocol/codec.h"

namespace millrace::coordinator {

namespace {

// Requests to consider for each lane: a queue may be long.
constexpr int64_t kCandidatesALane = 8;
// For the slowest of them. Nothing interrupts prompts in lanes: until all have ended, leases are
// not renewed, a cancelled prompt keeps its rank, and new requests wait.
constexpr double kLongestS = 30;
// For all prompts together, since they go in one message.
constexpr size_t kMaxBytes = protocol::kMaxFrameBytes / 2;

struct Candidate {
  std::shared_ptr<Request> request;
  double alone_s;
  double lane_s;
  double until_deadline_s;
};

int64_t num_lanes(const Group& group) {
  return static_cast<int64_t>(group.description.cp());
}

int64_t most_new_tokens(const Group& group) {
  const auto& limits = group.description;
  const bool alone = group.running == nullptr && group.suspended.empty();
  const uint64_t most =
      alone ? limits.max_side_by_side_tokens()
            : std::min(limits.max_side_by_side_tokens(), limits.max_preempting_tokens());
  return static_cast<int64_t>(std::min(most, limits.max_prompt_tokens()));
}

bool has_share_of(const Group& group, const Request& request) {
  return static_cast<double>(group.prefixes.tokens_of(request)) >=
         kCachedShareOfLanes * static_cast<double>(request.num_tokens);
}

// New pages go only to the lane's rank, which has a share of the group's room.
bool fits(std::span<Group* const> groups, const Group& group, const Request& request,
          TimePoint now) {
  const int64_t cached = group.cached_for_lane(request);
  const bool cached_better =
      (cached == 0 && has_share_of(group, request)) ||
      (!has_share_of(group, request) && std::ranges::any_of(groups, [&](const Group* other) {
        return other != &group && has_share_of(*other, request);
      }));
  const int64_t num_new = request.num_tokens - cached;
  return request.runs_in_lanes && num_new <= most_new_tokens(group) && !cached_better &&
         (group.running == nullptr || request.preempts) && may_take(group, request, cached, now) &&
         group.has_room(num_new * num_lanes(group));
}

// The other idle groups, which will get the next requests in turn.
int64_t num_other_idle_groups(std::span<Group* const> groups, const Group& group,
                              const Request& request, TimePoint now) {
  return std::ranges::count_if(groups, [&](const Group* other) {
    return other != &group && other->idle() && may_take(*other, request, 0, now);
  });
}

Candidate candidate(const Group& group, const std::shared_ptr<Request>& request,
                    const Forecast& forecast, TimePoint now) {
  return {.request = request,
          .alone_s = seconds(forecast.expect(group, *request)),
          .lane_s = seconds(forecast.expect_in_lane(group, *request)),
          .until_deadline_s = seconds(request->must_end_by() - now)};
}

}  // namespace

std::vector<std::shared_ptr<Request>> choose_side_by_side(
    std::span<Group* const> groups, const Group& group, const std::shared_ptr<Request>& first,
    std::span<const std::shared_ptr<Request>> in_turn, const Forecast& forecast, TimePoint now) {
  // A group that has to show that it has recovered gets a single request.
  const bool trusted = group.health.rest() == Duration::zero();
  if (num_lanes(group) < 2 || !trusted || !fits(groups, group, *first, now)) return {};
  std::vector<Candidate> candidates = {candidate(group, first, forecast, now)};
  int64_t num_taken_elsewhere = num_other_idle_groups(groups, group, *first, now);
  for (const auto& request : in_turn) {
    if (request == first || !fits(groups, group, *request, now)) continue;
    if (num_taken_elsewhere-- > 0) continue;
    candidates.push_back(candidate(group, request, forecast, now));
    if (std::ssize(candidates) > kCandidatesALane * num_lanes(group)) break;
  }
  std::vector<std::shared_ptr<Request>> best;
  double best_saved_s = 0;
  for (const Candidate& slowest : candidates) {
    const double longest_s = std::max(slowest.lane_s, candidates.front().lane_s);
    if (longest_s > kLongestS) continue;
    if (group.running != nullptr && !may_set_aside(group, *first, longest_s, now)) continue;
    std::vector<std::shared_ptr<Request>> together;
    double saved_s = -longest_s;
    size_t bytes = 0;
    for (const Candidate& one : candidates) {
      if (one.lane_s > longest_s || one.until_deadline_s < longest_s) continue;
      bytes += one.request->prompt.size();
      if (bytes > kMaxBytes) break;
      together.push_back(one.request);
      saved_s += one.alone_s;
      if (std::ssize(together) == num_lanes(group)) break;
    }
    if (together.size() < 2 || together.front() != first || saved_s <= best_saved_s) continue;
    best = std::move(together);
    best_saved_s = saved_s;
  }
  return best;
}

}  // namespace millrace::coordinator
