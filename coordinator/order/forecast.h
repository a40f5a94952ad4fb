// How long a request will take on the groups that are here: a PrefillCurve for each kind of group
// (model, device, grid) and for each head plan on it. A kind that has ended nothing yet is taken for
// another of its model, in proportion to its ranks. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "coordinator/groups/group.h"
#include "coordinator/order/prefill_curve.h"

namespace millrace::coordinator {

class Forecast {
 public:
  // `group` has prefilled `request`, of which it had cached so many tokens, in `took`. A cold group's first counts where nothing
  // else is known of its kind, and only until a prompt as long or longer is: one of 256 tokens that took longer than a second
  // made all others, of up to 541,882, look nearly equal, so that they ran in order of arrival.
  void finished(const Group& group, const Request& request, Duration took,
                int64_t cached_tokens = 0);
  // The same in a lane.
  void finished_in_lane(const Group& group, const Request& request, Duration took,
                        int64_t cached_tokens = 0);
  // Behind what the group is known to have cached of it (Group::prefixes).
  Duration expect(const Group& group, const Request& request) const;
  // The whole prompt.
  Duration expect_whole(const Group& group, const Request& request) const;
  // On one context-parallel rank of the group, while others run on the rest, behind what it begins with there
  // (Group::cached_for_lane). Until some of about its length were seen, what it takes on all ranks, times their number in all but
  // the part that no rank shares (PrefillCurve::guess).
  Duration expect_in_lane(const Group& group, const Request& request) const;
  // On the fastest of the groups that take it; nothing if none does.
  std::optional<Duration> expect(std::span<const Group* const> groups,
                                 const Request& request) const;
  // What it hardly falls below on the group, that has cached so many of its tokens at most; nothing where
  // too little is known.
  std::optional<Duration> least(const Group& group, const Request& request,
                                int64_t cached_at_most) const;

 private:
  struct Observed {
    int64_t num_tokens = 0;  // 0: nothing
    std::string plan;
  };
  struct Curves {
    void observe(const Request& request, Duration took);
    void forget(const Observed& one);
    const PrefillCurve& of(const Request& request) const;

    PrefillCurve all;
    std::map<std::string, PrefillCurve> by_plan;  // clients choose the text: bounded
  };
  struct Kind {
    Curves whole;
    Observed cold;  // a cold group's first, while `whole` has it
    Curves in_lane;
    // Of cached tokens: what prompts behind a prefix took longer than rows_behind, the mean of the
    // latest.
    double read_s_per_token = 0;
    int num_behind = 0;
    // The same in a lane, where one rank reads all; until one was seen, as on all ranks.
    double read_s_per_token_in_lane = 0;
    int num_behind_in_lane = 0;
  };

  // Seconds for the rows behind the cached ones, were they to take what they take in a whole prompt.
  double rows_behind(const Group& group, const Request& request, int64_t cached_tokens) const;
  // What a whole prompt takes in a lane, as a multiple of what it takes on all ranks.
  double factor_of_lane(const Group& group, const Request& request, int64_t num_tokens) const;
  double rows_behind_in_lane(const Group& group, const Request& request,
                             int64_t cached_tokens) const;
  Kind* kind_to_learn(const Group& group);
  Duration at(const Group& group, const Request& request, int64_t num_tokens) const;
  const PrefillCurve* curve_of(const Group& group, const Request& request) const;

  // Model, device, tensor- and context-parallel ranks.
  using KindKey = std::tuple<std::string, std::string, uint32_t, uint32_t>;
  std::map<KindKey, Kind, std::less<>> kinds_;
};

}  // namespace millrace::coordinator
