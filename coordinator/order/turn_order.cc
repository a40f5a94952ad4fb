// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/turn_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>

#include "coordinator/order/priority_ageing.h"

namespace millrace::coordinator {

namespace {

// The rank of a request among its owner's.
struct OwnTurn {
  auto rank() const { return std::tuple(priority, -response_ratio, number); }

  int32_t priority = std::numeric_limits<int32_t>::max();
  double response_ratio = 0;
  size_t number = 0;  // in the queue
};

struct Turn {
  bool given_back;
  double owners_turn;
  const OwnTurn* owners_first;
  OwnTurn own;
  std::shared_ptr<Request> request;

  auto rank() const {
    return std::tuple(!given_back, owners_turn, -owners_first->response_ratio, owners_first->number,
                      own.rank());
  }
};

using WaitingOf = std::map<std::pair<std::string_view, std::string_view>, WaitingPriorities>;

WaitingOf priorities_of(const TurnOrder::Queue& waiting) {
  WaitingOf priorities;
  for (const auto& request : waiting) {
    priorities[{request->owner, request->model}].add(*request);
  }
  return priorities;
}

// Whether a waiting request of the same owner stays before `request`, which arrives now, for
// `longest_s`. Response ratios grow in proportion to time: the request that is first at both ends
// is first in between.
bool stays_before(const Request& waiting, double expected_s, const Request& request,
                  double own_expected_s, TimePoint now, double longest_s) {
  if (aged_priority(waiting, now) > request.priority()) return false;
  const double steps = static_cast<double>(request.priority()) - waiting.priority();
  if (steps * seconds(kAgeingStep) > longest_s) return true;
  return (waiting.queue_s(now) + longest_s) / expected_s >= longest_s / own_expected_s;
}

}  // namespace

double TurnOrder::expected_s(const Request& request, std::span<const Group* const> groups) const {
  return seconds(
      forecast_.expect(groups, request).value_or(PrefillCurve::guess(request.num_tokens)));
}

TurnOrder::Requests TurnOrder::arrange(const Queue& waiting, std::span<const Group* const> groups,
                                       TimePoint now) const {
  if (order_ == QueueOrder::kArrival) return Requests(waiting.begin(), waiting.end());
  const WaitingOf priorities = priorities_of(waiting);
  std::vector<Turn> turns;
  turns.reserve(waiting.size());
  std::map<std::string_view, OwnTurn> first_of;  // by owner
  for (const auto& request : waiting) {
    const auto& competing = priorities.at({request->owner, request->model});
    const OwnTurn own{.priority = competing.value_of(*request, now),
                      .response_ratio = 1 + request->queue_s(now) / expected_s(*request, groups),
                      .number = turns.size()};
    const auto [first, is_first] = first_of.emplace(request->owner, own);
    if (!is_first && own.rank() < first->second.rank()) first->second = own;
    turns.push_back({.given_back = request->given_back.has_value(),
                     .owners_turn = ledger_.turn_of(request->owner),
                     .owners_first = &first->second,
                     .own = own,
                     .request = request});
  }
  std::sort(turns.begin(), turns.end(),
            [](const Turn& a, const Turn& b) { return a.rank() < b.rank(); });
  Requests ordered;
  ordered.reserve(turns.size());
  for (Turn& turn : turns) ordered.push_back(std::move(turn.request));
  return ordered;
}

// An owner who has had less than the owner of `request` comes first until it has had as much. Its
// waiting requests for other models may use up that time before.
TurnOrder::Requests TurnOrder::surely_before(const Request& request, const Queue& waiting,
                                             std::span<const Group* const> groups, TimePoint now,
                                             Duration longest) const {
  Requests before;
  const double own_turn = ledger_.turn_of(request.owner);
  const double own_expected_s = expected_s(request, groups);
  std::map<std::string_view, double> taken_s;  // by owners, with turns before the request's
  for (const auto& other : waiting) {
    if (other->model != request.model) taken_s[other->owner] += expected_s(*other, groups);
  }
  for (const auto& other : arrange(waiting, groups, now)) {
    if (other->given_back || other->model != request.model) continue;
    if (order_ == QueueOrder::kFair) {
      const double other_s = expected_s(*other, groups);
      if (other->owner != request.owner) {
        double& taken = taken_s[other->owner];
        if (ledger_.turn_of(other->owner) + taken >= own_turn) continue;
        taken += other_s;
      } else if (!stays_before(*other, other_s, request, own_expected_s, now, seconds(longest))) {
        continue;
      }
    }
    before.push_back(other);
  }
  return before;
}

void TurnOrder::started(const Group& group, Request& request, TimePoint now) {
  request.dispatched_at = now;
  request.set_aside_s = 0;
  request.times_set_aside = 0;
  const int beside = request.num_side_by_side;
  request.foreseen_tokens =
      beside > 1 ? group.cached_for_lane(request) : group.prefixes.tokens_of(request);
  request.expected_s = seconds(beside > 1 ? forecast_.expect_in_lane(group, request)
                                          : forecast_.expect(group, request));
  // All of them share, as group time, what the slowest takes.
  ledger_.take(request.owner, request.expected_s / beside);
}

void TurnOrder::stopped(const Group& group, const Request& request, TimePoint now, bool whole,
                        int64_t cached_tokens, std::optional<double> by_group_s) {
  // A preempting prompt has waited for the end of a layer.
  const double since_s = seconds(now - request.started_at.value_or(request.dispatched_at));
  const double took_s = std::min(since_s, by_group_s.value_or(since_s));
  const double own_s = std::max(0.0, took_s - request.set_aside_s);
  // Of prompts side by side, the last counts, which ends when all have ended.
  const bool set_aside = group.running != nullptr && group.running.get() != &request;
  if (set_aside && !request.suspended_at && group.side_by_side.empty()) {
    group.running->set_aside_s += request.num_side_by_side > 1 ? since_s : took_s;
  }
  ledger_.correct(request.owner, (own_s - request.expected_s) / request.num_side_by_side);
  if (!whole) return;
  const auto own = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(own_s));
  if (request.num_side_by_side == 1) {
    forecast_.finished(group, request, own, cached_tokens);
  } else if (by_group_s) {
    forecast_.finished_in_lane(group, request, own, cached_tokens);
  }
}

}  // namespace millrace::coordinator
