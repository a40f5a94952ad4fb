#include "coordinator/order/forecast.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace millrace::coordinator {

namespace {

// Beyond these, a plan or kind is no longer told from the others: names come from outside.
constexpr size_t kMaxPlans = 64;
constexpr size_t kMaxKinds = 256;

// Of the latest prompt behind a prefix, once there were some; as PrefillCurve.
constexpr double kLatestWeight = 0.1;
// Reading may be slower than computing: so much, and no more, since what one prompt met, as a disk that
// others kept busy, the next one need not meet.
constexpr double kMostOfComputing = 2;

Duration at(const PrefillCurve* curve, int64_t num_tokens) {
  return curve == nullptr ? PrefillCurve::guess(num_tokens) : curve->at(num_tokens);
}

// Asked for each waiting request and group: without a copy.
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
  if (cached_tokens == 0) return kind->whole.observe(request, took);
  const double most_s = kMostOfComputing * seconds(at(curve_of(group, request), cached_tokens));
  const double read_s =
      std::clamp(seconds(took) - rows_behind(group, request, cached_tokens), 0.0, most_s);
  const double weight = std::max(kLatestWeight, 1.0 / ++kind->num_behind);
  kind->read_s_per_token +=
      weight * (read_s / static_cast<double>(cached_tokens) - kind->read_s_per_token);
}

void Forecast::finished_in_lane(const Group& group, const Request& request, Duration took) {
  if (Kind* const kind = kind_to_learn(group)) kind->in_lane.observe(request, took);
}

const PrefillCurve* Forecast::curve_of(const Group& group, const Request& request) const {
  const auto kind = kinds_.find(kind_of(group));
  return kind == kinds_.end() ? nullptr : &kind->second.whole.of(request);
}

Duration Forecast::expect_in_lane(const Group& group, const Request& request) const {
  const auto kind = kinds_.find(kind_of(group));
  if (kind != kinds_.end()) {
    const auto known = kind->second.in_lane.of(request).known(request.num_tokens);
    if (known) return *known;
  }
  const double guess_s = seconds(PrefillCurve::guess(request.num_tokens));
  const double shared_s = guess_s - PrefillCurve::kGuessedOverheadS;
  const double in_lane =
      (PrefillCurve::kGuessedOverheadS + group.description.cp() * shared_s) / guess_s;
  return std::chrono::duration_cast<Duration>(
      in_lane * std::chrono::duration<double>(expect_whole(group, request)));
}

Duration Forecast::expect_whole(const Group& group, const Request& request) const {
  return at(curve_of(group, request), request.num_tokens);
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

// Rows of a whole prompt take what it takes less what the prompt up to them takes. No less than as
// many rows alone: the curve is learnt, and two of its points may lie wrong to each other.
double Forecast::rows_behind(const Group& group, const Request& request,
                             int64_t cached_tokens) const {
  const PrefillCurve* curve = curve_of(group, request);
  const int64_t new_tokens = std::max<int64_t>(1, request.num_tokens - cached_tokens);
  const double alone_s = seconds(at(curve, new_tokens));
  const double of_whole_s =
      seconds(at(curve, request.num_tokens)) - seconds(at(curve, cached_tokens));
  return std::max({1e-3, alone_s, of_whole_s});
}

std::optional<Duration> Forecast::expect(std::span<const Group* const> groups,
                                         const Request& request) const {
  std::optional<Duration> best;
  for (const Group* group : groups) {
    if (!group->takes(request.model, request.num_tokens)) continue;
    const Duration one = expect(*group, request);
    best = best ? std::min(*best, one) : one;
  }
  return best;
}

std::optional<Duration> Forecast::least(std::span<const Group* const> groups,
                                        const Request& request) const {
  if ((request.options.cache() & protocol::CACHE_READ) != 0) return std::nullopt;
  std::optional<Duration> best;
  for (const Group* group : groups) {
    if (!group->takes(request.model, request.num_tokens)) continue;
    const PrefillCurve* curve = curve_of(*group, request);
    const auto one = curve == nullptr ? std::nullopt : curve->least(request.num_tokens);
    if (!one) return std::nullopt;
    best = best ? std::min(*best, *one) : *one;
  }
  return best;
}

}  // namespace millrace::coordinator
