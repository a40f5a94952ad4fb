#include "coordinator/order/forecast.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::coordinator {

namespace {

// Beyond these, a plan or kind is no longer told from the others: names come from outside.
constexpr size_t kMaxPlans = 64;
constexpr size_t kMaxKinds = 256;

std::string kind_of(const Group& group) {
  const protocol::Register& of = group.description;
  return fmt::format("{}\n{}\n{}x{}", of.model().name(), of.device(), of.tp(), of.cp());
}

}  // namespace

void Forecast::finished(const Group& group, const Request& request, Duration took) {
  const std::string name = kind_of(group);
  if (kinds_.size() >= kMaxKinds && kinds_.count(name) == 0) return;
  Kind& kind = kinds_[name];
  kind.all.observe(request.num_tokens, took);
  const std::string& plan = request.options.head_plan();
  if (kind.by_plan.size() < kMaxPlans || kind.by_plan.count(plan) != 0) {
    kind.by_plan[plan].observe(request.num_tokens, took);
  }
}

const PrefillCurve* Forecast::curve_of(const Group& group, const Request& request) const {
  const auto kind = kinds_.find(kind_of(group));
  if (kind == kinds_.end()) return nullptr;
  const auto plan = kind->second.by_plan.find(request.options.head_plan());
  return plan == kind->second.by_plan.end() ? &kind->second.all : &plan->second;
}

Duration Forecast::expect(const Group& group, const Request& request) const {
  const PrefillCurve* curve = curve_of(group, request);
  return curve == nullptr ? PrefillCurve::guess(request.num_tokens) : curve->at(request.num_tokens);
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
