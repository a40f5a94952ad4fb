// Which idle group gets a request that may begin with what groups have cached: the one that is expected to
// end it first. That is its wait, by what it runs, by requests that wait for it and come before, and
// the prefill of what it has not cached (Forecast). Where no group has cached any of it, choose_group()
// decides alone. One thread; lives for one pass over the requests that wait, in the order of their turns.
//
// A request may wait for a busy group that has its prefix while another is idle, but no longer than it
// saves by that: so it ends at most as much later than it could have as it may have ended earlier,
// whatever the forecast is worth (the rule of renting before buying: Karlin, Manasse, Rudolph, Sleator,
// Algorithmica 1988).
#pragma once

#include <map>
#include <span>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"

namespace millrace::coordinator {

class PrefixChoice {
 public:
  PrefixChoice(std::span<Group* const> groups, const Forecast& forecast, TimePoint now)
      : groups_(groups), forecast_(forecast), now_(now) {}

  // Null if the request should wait.
  Group* choose(Request& request);

 private:
  double end_s(const Group& group, const Request& request) const;
  bool is_patient(Request& request, const Group& idle, const Group& busy) const;

  const std::span<Group* const> groups_;
  const Forecast& forecast_;
  const TimePoint now_;
  std::map<const Group*, double> claimed_s_;  // by requests that wait for it, of this pass
};

}  // namespace millrace::coordinator
