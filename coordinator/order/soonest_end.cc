// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/soonest_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "common/page_tokens.h"
#include "coordinator/order/preemption.h"

namespace millrace::coordinator {

namespace {

bool reads_cache(const Request& request) {
  return (request.options.cache() & protocol::CACHE_READ) != 0;
}

// Tokens that both prompts begin with, in steps of KnownPrefixes::kStepTokens, if `writer` leaves
// its pages for `reader`. A key covers everything before it, so keys differ from where the prompts
// differ.
int64_t shared_tokens(const Request& reader, const Request& writer) {
  if ((writer.options.cache() & protocol::CACHE_WRITE) == 0 || writer.tenant != reader.tenant ||
      writer.model != reader.model) {
    return 0;
  }
  size_t shared = 0;
  size_t end = std::min(reader.prefix_keys.size(), writer.prefix_keys.size());
  while (shared < end) {
    const size_t middle = shared + (end - shared) / 2;
    const bool equal = reader.prefix_keys[middle] == writer.prefix_keys[middle];
    (equal ? shared : end) = equal ? middle + 1 : middle;
  }
  return static_cast<int64_t>(shared) * KnownPrefixes::kStepTokens;
}

// Tokens that a request may find cached wherever it runs: pages of other prompts that are not there
// yet.
int64_t coming_tokens(const Request& request, std::span<const Group* const> groups,
                      const TurnOrder::Queue& waiting) {
  int64_t most = 0;
  for (const auto& other : waiting) {
    if (other.get() != &request) most = std::max(most, shared_tokens(request, *other));
  }
  for (const Group* group : groups) {
    for (const auto& other : group->requests()) {
      most = std::max(most, shared_tokens(request, *other));
    }
  }
  return most;
}

// nullopt where the group may have cached more than is known.
std::optional<int64_t> cached_at_most(const Group& group, const Request& request, int64_t coming) {
  if (!reads_cache(request)) return 0;
  const bool has_keys =
      !request.prefix_keys.empty() || request.num_tokens < KnownPrefixes::kStepTokens;
  if (!has_keys || !group.prefixes.complete()) return std::nullopt;
  const int64_t known = std::max(coming, group.prefixes.most_tokens_of(request));
  const int64_t rest = KnownPrefixes::kStepTokens - 1;
  return std::max<int64_t>(0, std::min(known + rest, request.num_tokens - kPageTokens));
}

bool may_take(const Group& group, const Request& request) {
  return !group.draining && group.takes(request.model, request.num_tokens);
}

// The least time of a prompt on a group that may take it.
struct Place {
  const Group* group;
  Duration prefill;
  int64_t cached_tokens;
};

// nullopt where one of the times is not known well enough.
std::optional<std::vector<Place>> places_for(const Request& request,
                                             std::span<const Group* const> groups, int64_t coming,
                                             const Forecast& forecast) {
  std::vector<Place> places;
  for (const Group* group : groups) {
    if (!may_take(*group, request)) continue;
    const auto cached = cached_at_most(*group, request, coming);
    const auto least = cached ? forecast.least(*group, request, *cached) : std::nullopt;
    if (!least) return std::nullopt;
    places.push_back({group, *least, *cached});
  }
  if (places.empty()) return std::nullopt;
  return places;
}

// Whether the group may take it between two layers, now or at some time.
bool may_preempt(const Group& group, const Request& request, int64_t cached_tokens) {
  return request.preempts &&
         group.takes_between_layers(request.num_tokens, request.num_tokens - cached_tokens);
}

// Whether others may run at the same time.
bool may_run_in_lane(const Group& group, const Request& request) {
  const auto most_new = static_cast<int64_t>(group.description.max_side_by_side_tokens());
  return group.description.cp() > 1 &&
         request.num_tokens - group.cached_for_lane(request) <= most_new;
}

// When each group will have done what comes before a prompt.
class FreeTimes {
 public:
  FreeTimes(std::span<const Group* const> groups, const Forecast& forecast, TimePoint now)
      : forecast_(forecast), now_(now) {
    for (const Group* group : groups) times_.push_back(start_of(*group));
  }

  // Counts `request` as running next, unless that is uncertain.
  void give(const Request& request, const TurnOrder::Queue& waiting,
            std::span<const Group* const> groups) {
    Time* best = nullptr;
    std::optional<Duration> took;
    const int64_t coming = reads_cache(request) ? coming_tokens(request, groups, waiting) : 0;
    for (Time& time : times_) {
      const Group& group = *time.group;
      if (!may_take(group, request)) continue;
      const auto cached = cached_at_most(group, request, coming);
      if (!cached || may_preempt(group, request, *cached)) return;
      if (may_run_in_lane(group, request)) return;
      const auto least = forecast_.least(group, request, *cached);
      if (!least) return;
      const bool has_room = time.free_tokens >= request.num_tokens;
      if (!has_room || (best != nullptr && time.at + *least >= best->at + *took)) continue;
      best = &time;
      took = least;
    }
    if (best == nullptr) return;
    const Duration until_deadline = request.must_end_by() - now_;
    if (best->at + *took > until_deadline) return;
    best->at += *took;
    best->free_tokens -= request.num_tokens;
    ++best->num_prompts;
  }

  Duration of(const Group* group) const { return find(group).at; }
  int64_t num_prompts() const {
    int64_t sum = 0;
    for (const Time& time : times_) sum += time.num_prompts;
    return sum;
  }

 private:
  struct Time {
    const Group* group;
    Duration at{};
    int64_t free_tokens = std::numeric_limits<int64_t>::max();
    int64_t num_prompts = 0;
  };

  Time start_of(const Group& group) const {
    Time time{.group = &group};
    if (group.free_tokens) time.free_tokens = *group.free_tokens;
    for (const auto& busy_with : group.in_turn()) {
      if (busy_with == nullptr || busy_with->cancel_sent_at) continue;
      if (!forecast_.least(group, *busy_with, busy_with->foreseen_tokens)) continue;
      time.at += std::chrono::duration_cast<Duration>(
          std::chrono::duration<double>(PrefillCurve::kLeast * seconds_left(*busy_with, now_)));
      ++time.num_prompts;
    }
    return time;
  }
  const Time& find(const Group* group) const {
    return *std::ranges::find(times_, group, &Time::group);
  }

  const Forecast& forecast_;
  const TimePoint now_;
  std::vector<Time> times_;
};

}  // namespace

std::string cached_text(int64_t cached_tokens) {
  if (cached_tokens == 0) return {};
  return fmt::format(", of which {} are cached at most,", cached_tokens);
}

std::optional<SoonestEnd> least_prefill(const Request& request,
                                        std::span<const Group* const> groups,
                                        const TurnOrder::Queue& waiting, const TurnOrder& turns) {
  const int64_t coming = reads_cache(request) ? coming_tokens(request, groups, waiting) : 0;
  const auto places = places_for(request, groups, coming, turns.forecast());
  if (!places) return std::nullopt;
  const Place& best = *std::ranges::min_element(*places, {}, &Place::prefill);
  return SoonestEnd{.prefill = best.prefill, .cached_tokens = best.cached_tokens};
}

std::optional<SoonestEnd> soonest_end(const Request& request, std::span<const Group* const> groups,
                                      const TurnOrder::Queue& waiting, const TurnOrder& turns,
                                      TimePoint now) {
  const int64_t coming = reads_cache(request) ? coming_tokens(request, groups, waiting) : 0;
  const auto places = places_for(request, groups, coming, turns.forecast());
  if (!places) return std::nullopt;
  const auto begins_at_once = [&](const Place& place) {
    return place.group->idle() || may_preempt(*place.group, request, place.cached_tokens);
  };
  FreeTimes times(groups, turns.forecast(), now);
  // If one group can begin at once, the waiting requests wait for something else.
  if (std::ranges::none_of(*places, begins_at_once)) {
    const Place& fastest = *std::ranges::min_element(*places, {}, &Place::prefill);
    const Duration longest = std::max(Duration::zero(), request.deadline_after() - fastest.prefill);
    for (const auto& other : turns.surely_before(request, waiting, groups, now, longest)) {
      times.give(*other, waiting, groups);
    }
  }
  SoonestEnd best;
  Duration best_end = Duration::max();
  for (const Place& place : *places) {
    const Duration wait = begins_at_once(place) ? Duration::zero() : times.of(place.group);
    if (wait + place.prefill >= best_end) continue;
    best_end = wait + place.prefill;
    best = {.wait = wait,
            .prefill = place.prefill,
            .cached_tokens = place.cached_tokens,
            .num_ahead = wait == Duration::zero() ? 0 : times.num_prompts()};
  }
  return best;
}

}  // namespace millrace::coordinator
