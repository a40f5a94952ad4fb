// SPDX-License-Identifier: Apache-2.0
// How long a request will take on the connected groups. There is a PrefillCurve for each kind of
// group (model, device, grid) and for each head plan on it. A kind that has not finished any prompt
// yet is estimated from another kind of its model, in proportion to their ranks. One thread.
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
  // `group` has prefilled `request` in `took`, with `cached_tokens` of it cached. The first prompt
  // of a cold group counts only where nothing else is known of its kind, and only until a prompt as
  // long or longer is known: one of 256 tokens that took longer than a second made all others, of
  // up to 541,882, look nearly equal, so that they ran in order of arrival.
  void finished(const Group& group, const Request& request, Duration took,
                int64_t cached_tokens = 0);
  // The same for a prompt that ran in a lane.
  void finished_in_lane(const Group& group, const Request& request, Duration took,
                        int64_t cached_tokens = 0);
  // On the group, behind the prefix that it is known to have cached (Group::prefixes).
  Duration expect(const Group& group, const Request& request) const;
  // The same if nothing is cached.
  Duration expect_whole(const Group& group, const Request& request) const;
  // In a lane of the group, while others run in the other lanes, behind the prefix that it begins
  // with there (Group::cached_for_lane). Until prompts of about its length have been seen in lanes,
  // this is the time on all ranks, multiplied by the number of context-parallel ranks except for
  // the part that the ranks do not share (PrefillCurve::guess).
  Duration expect_in_lane(const Group& group, const Request& request) const;
  // On the fastest of the groups that take it; nullopt if none does.
  std::optional<Duration> expect(std::span<const Group* const> groups,
                                 const Request& request) const;
  // A time that the request hardly ever falls below on the group, which has cached at most
  // `cached_at_most` of its tokens. nullopt where too little is known.
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
    Observed cold;  // a cold group's first prompt, while `whole` contains it
    Curves in_lane;
    // Per cached token: how much longer prompts behind a prefix took than rows_behind(); the mean
    // of the latest.
    double read_s_per_token = 0;
    int num_behind = 0;
    // The same in a lane, where one rank reads all pages. Until such a prompt has been seen, the
    // value for all ranks is used.
    double read_s_per_token_in_lane = 0;
    int num_behind_in_lane = 0;
  };

  // Seconds for the rows behind the cached ones, if they take as long as in a prefill of the whole
  // prompt.
  double rows_behind(const Group& group, const Request& request, int64_t cached_tokens) const;
  // The time of a whole prompt in a lane, as a multiple of its time on all ranks.
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
