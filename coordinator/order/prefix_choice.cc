// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/prefix_choice.h"

#include <algorithm>

#include "coordinator/groups/group_choice.h"
#include "coordinator/order/preemption.h"

namespace millrace::coordinator {

namespace {

// A prompt that takes longer than expected may take as long again.
double rest_s(const Request& running, TimePoint now) {
  const double left_s = seconds_left(running, now);
  if (left_s > 0) return left_s;
  const double spent_s = seconds(now - running.started_at.value_or(running.dispatched_at));
  return std::max(0.0, spent_s - running.set_aside_s - running.expected_s);
}

double wait_s(const Group& group, const Request& request, const Forecast& forecast, TimePoint now) {
  if (const auto layer_s = seconds_to_preempt(group, request, forecast, now)) return *layer_s;
  double sum_s = 0;
  for (const auto& busy_with : group.in_turn()) {
    if (busy_with != nullptr) sum_s += rest_s(*busy_with, now);
  }
  double lanes_s = 0;
  for (const auto& one : group.side_by_side) lanes_s = std::max(lanes_s, rest_s(*one, now));
  return sum_s + lanes_s;
}

}  // namespace

// Seconds from now to its end, plus the seconds that others lose.
double PrefixChoice::cost_s(const Group& group, const Request& request) const {
  const auto claimed = claimed_s_.find(&group);
  return wait_s(group, request, forecast_, now_) +
         price_ * seconds(forecast_.expect(group, request)) +
         (claimed == claimed_s_.end() ? 0 : claimed->second);
}

Group* PrefixChoice::choose_without_prefix(const Request& request) const {
  return order_ == GroupOrder::kMostRoom ? choose_group(groups_, request, now_)
                                         : choose_group_by_end(groups_, request, forecast_, now_);
}

Group* PrefixChoice::choose(Request& request) {
  Group* const plain = choose_without_prefix(request);
  if (request.prefix_keys.empty()) return plain;
  Group* best = plain;
  double best_s = plain == nullptr ? 0 : cost_s(*plain, request);
  for (Group* group : groups_) {
    const int64_t cached = group->prefixes.tokens_of(request);
    if (cached == 0 || group == plain || !may_take(*group, request, cached, now_)) continue;
    const double one_s = cost_s(*group, request);
    if (best != nullptr && one_s >= best_s) continue;
    best = group;
    best_s = one_s;
  }
  if (best == nullptr || best->idle()) return best;
  if (plain != nullptr && !is_patient(request, *plain, *best)) return plain;
  claimed_s_[best] += seconds(forecast_.expect(*best, request));
  return nullptr;
}

bool PrefixChoice::is_patient(Request& request, const Group& idle, const Group& busy) const {
  if (!request.waits_for_prefix_since) request.waits_for_prefix_since = now_;
  const Duration saved = forecast_.expect(idle, request) - forecast_.expect(busy, request);
  return seconds(now_ - *request.waits_for_prefix_since) <= price_ * seconds(saved);
}

}  // namespace millrace::coordinator
