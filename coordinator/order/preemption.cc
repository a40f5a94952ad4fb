// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/preemption.h"

#include <algorithm>
#include <limits>

namespace millrace::coordinator {

namespace {

// What is cached is not computed: the other prompt's layer waits only for the new tokens.
bool takes_between_layers(const Group& group, const Request& request) {
  const int64_t new_tokens = request.num_tokens - group.prefixes.tokens_of(request);
  return request.preempts && group.takes_between_layers(request.num_tokens, new_tokens) &&
         group.takes(request.model, request.num_tokens) && group.has_room(new_tokens) &&
         request.failed_on.count(group.description.group_id()) == 0;
}

}  // namespace

bool outranks(const Request& request, const Request& other) {
  return request.owner == other.owner && request.priority() < other.priority();
}

// Uses its layers once it has reported some.
double seconds_left(const Request& running, TimePoint now) {
  const double spent_s = seconds(now - running.started_at.value_or(running.dispatched_at));
  const double by_time = running.expected_s - (spent_s - running.set_aside_s);
  if (running.layer_density.empty() || running.num_layers == 0) return std::max(0.0, by_time);
  const auto done = static_cast<double>(running.layer_density.size());
  return running.expected_s * std::max(0.0, 1 - done / static_cast<double>(running.num_layers));
}

double side_by_side_left(const Group& group, TimePoint now) {
  double left_s = 0;
  for (const auto& one : group.side_by_side) left_s = std::max(left_s, seconds_left(*one, now));
  return left_s;
}

bool is_preemptible(const Group* group) {
  return group->running != nullptr && group->preempting == nullptr && group->side_by_side.empty() &&
         (group->suspended.empty() || group->description.suspends_several()) && !group->draining &&
         !group->running->cancel_sent_at && group->description.max_preempting_tokens() > 0;
}

bool may_set_aside(const Group& group, const Request& request, double for_s, TimePoint now) {
  const Request& running = *group.running;
  const double left_s = seconds_left(running, now);
  const double until_deadline_s = seconds(running.must_end_by() - now);
  const bool by_priority = outranks(request, running);
  const double share = by_priority ? kSetAsideShareByPriority : kSetAsideShare;
  return (by_priority || for_s <= kPreemptingShareOfRest * left_s) &&
         running.set_aside_s + for_s <= share * running.expected_s &&
         running.times_set_aside < kMostTimesSetAside && left_s + for_s <= until_deadline_s;
}

std::optional<double> seconds_to_preempt(const Group& group, const Request& request,
                                         const Forecast& forecast, TimePoint now) {
  if (!is_preemptible(&group) || !takes_between_layers(group, request)) return std::nullopt;
  if (group.health.rests(now)) return std::nullopt;
  const double expected_s = seconds(forecast.expect(group, request));
  if (!may_set_aside(group, request, expected_s, now)) return std::nullopt;
  const Request& running = *group.running;
  return running.expected_s / std::max(1u, running.num_layers);
}

Group* choose_group_to_preempt(std::span<Group* const> groups, const Request& request,
                               const Forecast& forecast, TimePoint now) {
  Group* best = nullptr;
  double best_end_s = std::numeric_limits<double>::infinity();
  double free_end_s = best_end_s;
  for (Group* group : groups) {
    const bool busy = group->running != nullptr || !group->side_by_side.empty();
    if (!busy || !group->takes(request.model, request.num_tokens)) continue;
    const double expected_s = seconds(forecast.expect(*group, request));
    if (!group->draining) {
      const double left_s = group->running != nullptr ? seconds_left(*group->running, now) : 0;
      free_end_s = std::min(free_end_s, left_s + side_by_side_left(*group, now) + expected_s);
    }
    const auto wait_s = seconds_to_preempt(*group, request, forecast, now);
    if (!wait_s || *wait_s + expected_s >= best_end_s) continue;
    best = group;
    best_end_s = *wait_s + expected_s;
  }
  return best_end_s <= free_end_s ? best : nullptr;
}

}  // namespace millrace::coordinator
