// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/forecast.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace millrace::coordinator {

namespace {

// Beyond these numbers, new plans and kinds are not told apart: their names come from outside.
constexpr size_t kMaxPlans = 64;
constexpr size_t kMaxKinds = 256;

// The weight of the latest prompt behind a prefix, once there were some; as in PrefillCurve.
constexpr double kLatestWeight = 0.1;
// Reading may count as this much slower than computing, but no more: what slowed one prompt down,
// such as a disk that others kept busy, need not slow the next one.
constexpr double kMostOfComputing = 2;

double ranks_of(uint32_t tp, uint32_t cp) {
  return static_cast<double>(uint64_t{std::max(1u, tp)} * std::max(1u, cp));
}

// Called for each waiting request and group, so it makes no copy.
std::tuple<std::string_view, std::string_view, uint32_t, uint32_t> kind_of(const Group& group) {
  const protocol::Register& of = group.description;
  return {of.model().name(), of.device(), of.tp(), of.cp()};
}

}  // namespace

void Forecast::Curves::observe(const Request& request, Duration took) {
  all.observe(request.num_tokens, took);
  const std::string& plan = request.options.head_plan();
  if (by_plan.size() < kMaxPlans || by_plan.count(plan) != 0) {
    by_plan[plan].observe(request.num_tokens, took);
  }
}

void Forecast::Curves::forget(const Observed& one) {
  all.forget(one.num_tokens);
  const auto plan = by_plan.find(one.plan);
  if (plan == by_plan.end()) return;
  plan->second.forget(one.num_tokens);
  if (plan->second.empty()) by_plan.erase(plan);
}

const PrefillCurve& Forecast::Curves::of(const Request& request) const {
  const auto plan = by_plan.find(request.options.head_plan());
  return plan == by_plan.end() ? all : plan->second;
}

Forecast::Kind* Forecast::kind_to_learn(const Group& group) {
  auto known = kinds_.find(kind_of(group));
  if (known == kinds_.end()) {
    if (kinds_.size() >= kMaxKinds) return nullptr;
    known = kinds_.emplace(kind_of(group), Kind()).first;
  }
  return &known->second;
}

void Forecast::finished(const Group& group, const Request& request, Duration took,
                        int64_t cached_tokens) {
  Kind* const kind = kind_to_learn(group);
  if (kind == nullptr) return;
  if (cached_tokens == 0) {
    if (group.cold && !kind->whole.all.empty()) return;
    if (group.cold) {
      kind->cold = {.num_tokens = request.num_tokens, .plan = request.options.head_plan()};
    } else if (kind->cold.num_tokens > 0 && request.num_tokens >= kind->cold.num_tokens) {
      kind->whole.forget(std::exchange(kind->cold, {}));
    }
    return kind->whole.observe(request, took);
  }
  if (group.cold) return;
  const double most_s = kMostOfComputing * seconds(at(group, request, cached_tokens));
  const double read_s =
      std::clamp(seconds(took) - rows_behind(group, request, cached_tokens), 0.0, most_s);
  const double weight = std::max(kLatestWeight, 1.0 / ++kind->num_behind);
  kind->read_s_per_token +=
      weight * (read_s / static_cast<double>(cached_tokens) - kind->read_s_per_token);
}

void Forecast::finished_in_lane(const Group& group, const Request& request, Duration took,
                                int64_t cached_tokens) {
  Kind* const kind = group.cold ? nullptr : kind_to_learn(group);
  if (kind == nullptr) return;
  if (cached_tokens == 0) return kind->in_lane.observe(request, took);
  const double rows_s = rows_behind_in_lane(group, request, cached_tokens);
  const double weight = std::max(kLatestWeight, 1.0 / ++kind->num_behind_in_lane);
  const double read_s = std::max(0.0, seconds(took) - rows_s) / static_cast<double>(cached_tokens);
  kind->read_s_per_token_in_lane += weight * (read_s - kind->read_s_per_token_in_lane);
}

const PrefillCurve* Forecast::curve_of(const Group& group, const Request& request) const {
  const auto kind = kinds_.find(kind_of(group));
  if (kind == kinds_.end() || kind->second.whole.all.empty()) return nullptr;
  return &kind->second.whole.of(request);
}

Duration Forecast::expect_in_lane(const Group& group, const Request& request) const {
  const int64_t cached = group.cached_for_lane(request);
  if (cached > 0) {
    const auto kind = kinds_.find(kind_of(group));
    double read_s_per_token = 0;
    if (kind != kinds_.end()) {
      read_s_per_token = kind->second.num_behind_in_lane > 0 ? kind->second.read_s_per_token_in_lane
                                                             : kind->second.read_s_per_token;
    }
    return std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(rows_behind_in_lane(group, request, cached) +
                                      read_s_per_token * static_cast<double>(cached)));
  }
  return std::chrono::duration_cast<Duration>(
      factor_of_lane(group, request, request.num_tokens) *
      std::chrono::duration<double>(expect_whole(group, request)));
}

double Forecast::factor_of_lane(const Group& group, const Request& request,
                                int64_t num_tokens) const {
  const auto kind = kinds_.find(kind_of(group));
  if (kind != kinds_.end()) {
    const PrefillCurve& in_lane = kind->second.in_lane.of(request);
    if (in_lane.knows(num_tokens)) {
      return seconds(in_lane.at(num_tokens)) / seconds(at(group, request, num_tokens));
    }
  }
  const double guess_s = seconds(PrefillCurve::guess(num_tokens));
  const double shared_s = guess_s - PrefillCurve::kGuessedOverheadS;
  return (PrefillCurve::kGuessedOverheadS + group.description.cp() * shared_s) / guess_s;
}

double Forecast::rows_behind_in_lane(const Group& group, const Request& request,
                                     int64_t cached_tokens) const {
  const int64_t new_tokens = std::max<int64_t>(1, request.num_tokens - cached_tokens);
  return factor_of_lane(group, request, new_tokens) * rows_behind(group, request, cached_tokens);
}

// If nothing has ended on this kind yet, uses the first other kind of the model, of the same device
// if there is one.
Duration Forecast::at(const Group& group, const Request& request, int64_t num_tokens) const {
  if (const auto* curve = curve_of(group, request)) return curve->at(num_tokens);
  const auto& [model, device, tp, cp] = kind_of(group);
  const PrefillCurve* kin = nullptr;
  double kins_ranks = 1;
  for (const auto& [key, kind] : kinds_) {
    const auto& [kins_model, kins_device, kins_tp, kins_cp] = key;
    const bool better = kins_model == model && (kin == nullptr || kins_device == device);
    if (!better || kind.whole.all.empty()) continue;
    kin = &kind.whole.all;
    kins_ranks = ranks_of(kins_tp, kins_cp);
    if (kins_device == device) break;
  }
  const Duration of_kin = kin == nullptr ? PrefillCurve::guess(num_tokens) : kin->at(num_tokens);
  return std::chrono::duration_cast<Duration>(of_kin * (kins_ranks / ranks_of(tp, cp)));
}

Duration Forecast::expect_whole(const Group& group, const Request& request) const {
  return at(group, request, request.num_tokens);
}

Duration Forecast::expect(const Group& group, const Request& request) const {
  const int64_t cached = group.prefixes.tokens_of(request);
  if (cached == 0) return expect_whole(group, request);
  const auto kind = kinds_.find(kind_of(group));
  const double read_s =
      kind == kinds_.end() ? 0 : kind->second.read_s_per_token * static_cast<double>(cached);
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(rows_behind(group, request, cached) + read_s));
}

// The last rows of a prompt take the time of the whole prompt less the time of the prompt before
// them, but no less than as many rows alone: the curve is learnt, and two of its points may not fit
// together.
double Forecast::rows_behind(const Group& group, const Request& request,
                             int64_t cached_tokens) const {
  const int64_t new_tokens = std::max<int64_t>(1, request.num_tokens - cached_tokens);
  const double alone_s = seconds(at(group, request, new_tokens));
  const double of_whole_s =
      seconds(at(group, request, request.num_tokens)) - seconds(at(group, request, cached_tokens));
  return std::max({1e-3, alone_s, of_whole_s});
}

std::optional<Duration> Forecast::expect(std::span<const Group* const> groups,
                                         const Request& request) const {
  std::optional<Duration> best;
  const Group* alike = nullptr;  // a group whose kind has been evaluated for the whole prompt
  for (const Group* group : groups) {
    if (!group->takes(request.model, request.num_tokens)) continue;
    if (group->prefixes.tokens_of(request) == 0) {
      if (alike != nullptr && kind_of(*alike) == kind_of(*group)) continue;
      alike = group;
    }
    const Duration one = expect(*group, request);
    best = best ? std::min(*best, one) : one;
  }
  return best;
}

// Rows behind a prefix take no less than the whole prompt less the prefix, and no less than as many
// rows alone. The prefix must be of a known length, or so short that it takes less than half of the
// whole: time grows at least in proportion to length.
std::optional<Duration> Forecast::least(const Group& group, const Request& request,
                                        int64_t cached_at_most) const {
  const PrefillCurve* curve = curve_of(group, request);
  if (curve == nullptr) return std::nullopt;
  const int64_t whole = request.num_tokens;
  const int64_t cached = std::min(cached_at_most, whole - 1);
  if (cached <= 0) return curve->least(whole);
  const bool prefix_known = 2 * cached <= whole || curve->knows(cached);
  const bool by_whole = curve->knows(whole) && prefix_known;
  const bool by_rest = curve->knows(whole - cached);
  if (!by_whole && !by_rest) return std::nullopt;
  Duration rows{};
  if (by_whole) rows = std::max(rows, curve->at(whole) - curve->at(cached));
  if (by_rest) rows = std::max(rows, curve->at(whole - cached));
  return std::chrono::duration_cast<Duration>(PrefillCurve::kLeast * rows);
}

}  // namespace millrace::coordinator
