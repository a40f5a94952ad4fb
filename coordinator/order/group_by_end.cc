// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/group_by_end.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "coordinator/groups/group_choice.h"

namespace millrace::coordinator {

namespace {

struct Candidate {
  // The lowest rank is the best. A group that has not reported its room comes last.
  auto rank() const { return std::tuple(num_ranks, expected_s, -free_tokens); }

  Group* group;
  uint64_t num_ranks;
  double expected_s;
  int64_t free_tokens;
};

}  // namespace

Group* choose_group_by_end(std::span<Group* const> groups, const Request& request,
                           const Forecast& forecast, TimePoint now) {
  std::vector<Candidate> candidates;
  double soonest_s = std::numeric_limits<double>::infinity();
  for (Group* group : willing_groups(groups, request, now)) {
    const protocol::Register& grid = group->description;
    candidates.push_back({.group = group,
                          .num_ranks = uint64_t{grid.tp()} * grid.cp(),
                          .expected_s = seconds(forecast.expect(*group, request)),
                          .free_tokens = group->free_tokens.value_or(-1)});
    soonest_s = std::min(soonest_s, candidates.back().expected_s);
  }
  const double late_s = std::max(kAboutAsLong * soonest_s, soonest_s + kAboutAsSoonS);
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (candidate.expected_s > late_s) continue;
    if (best == nullptr || candidate.rank() < best->rank()) best = &candidate;
  }
  return best != nullptr ? best->group : choose_group(groups, request, now);
}

}  // namespace millrace::coordinator
