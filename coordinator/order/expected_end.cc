// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/expected_end.h"

#include <algorithm>
#include <vector>

#include "coordinator/order/preemption.h"

namespace millrace::coordinator {

namespace {

struct FreeAt {
  const Group* group;
  double s;  // from now
};

double busy_s(const Group& group, TimePoint now) {
  double left_s = side_by_side_left(group, now);
  for (const auto& one : group.in_turn()) {
    if (one != nullptr && !one->cancel_sent_at) left_s += seconds_left(*one, now);
  }
  return left_s;
}

std::vector<FreeAt> free_times(std::span<const Group* const> groups, TimePoint now) {
  std::vector<FreeAt> times;
  for (const Group* group : groups) {
    if (!group->draining) times.push_back({group, busy_s(*group, now)});
  }
  return times;
}

void give(const Request& request, double takes_s, std::vector<FreeAt>& times) {
  FreeAt* first = nullptr;
  for (FreeAt& time : times) {
    const bool takes = time.group->takes(request.model, request.num_tokens);
    if (takes && (first == nullptr || time.s < first->s)) first = &time;
  }
  if (first != nullptr) first->s += takes_s;
}

Duration of_s(double duration_s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(duration_s));
}

// When the first group that takes the request is free.
Duration first_free(const std::vector<FreeAt>& times, const Request& request) {
  std::optional<double> first_s;
  for (const auto& [group, s] : times) {
    if (group->takes(request.model, request.num_tokens)) first_s = std::min(s, first_s.value_or(s));
  }
  return of_s(first_s.value_or(0));
}

}  // namespace

std::optional<ExpectedEnd> expected_end(const std::shared_ptr<Request>& request,
                                        std::span<const Group* const> groups,
                                        const TurnOrder::Queue& waiting, const TurnOrder& turns,
                                        TimePoint now) {
  const Forecast& forecast = turns.forecast();
  std::vector<FreeAt> times = free_times(groups, now);
  TurnOrder::Queue with_it = waiting;
  if (std::ranges::find(with_it, request) == with_it.end()) with_it.push_back(request);
  for (const auto& other : turns.arrange(with_it, groups, now + first_free(times, *request))) {
    if (other == request) break;
    if (const auto takes = forecast.expect(groups, *other)) give(*other, seconds(*takes), times);
  }
  std::optional<ExpectedEnd> best;
  for (const auto& [group, free_s] : times) {
    if (!group->takes(request->model, request->num_tokens)) continue;
    const double wait_s =
        std::min(free_s, seconds_to_preempt(*group, *request, forecast, now).value_or(free_s));
    const ExpectedEnd end{.wait = of_s(wait_s), .prefill = forecast.expect(*group, *request)};
    if (best && end.all() >= best->all()) continue;
    best = end;
    best->cached_tokens = group->prefixes.tokens_of(*request);
    best->is_learnt = forecast.least(*group, *request, best->cached_tokens).has_value();
  }
  return best;
}

std::optional<ExpectedEnd> expected_rest(const std::shared_ptr<Request>& prefill,
                                         std::span<const Group* const> groups,
                                         const TurnOrder::Queue& waiting, const TurnOrder& turns,
                                         TimePoint now) {
  if (prefill->ended()) return ExpectedEnd{.cached_tokens = prefill->num_tokens, .is_learnt = true};
  if (prefill->state == RequestState::kQueued) {
    return expected_end(prefill, groups, waiting, turns, now);
  }
  for (const Group* group : groups) {
    if (group->description.group_id() != prefill->group_id) continue;
    const double own_s = seconds_left(*prefill, now);
    // What runs between its layers comes first.
    double wait_s = 0;
    const bool is_suspended = prefill->suspended_at.has_value();
    const bool has_turn = !is_suspended && std::ranges::count(group->in_turn(), prefill) > 0;
    if (has_turn && group->preempting != prefill) wait_s = busy_s(*group, now) - own_s;
    if (is_suspended) wait_s = busy_s(*group, now);
    const int64_t cached = prefill->foreseen_tokens;
    return ExpectedEnd{.wait = of_s(std::max(0.0, wait_s)),
                       .prefill = of_s(own_s),
                       .cached_tokens = cached,
                       .is_learnt = turns.forecast().least(*group, *prefill, cached).has_value()};
  }
  return std::nullopt;
}

}  // namespace millrace::coordinator
