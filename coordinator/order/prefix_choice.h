// SPDX-License-Identifier: Apache-2.0
// Which idle group gets a request whose prefix groups may have cached: the one that is expected to
// end it first. Its end includes the wait for what the group runs and for earlier requests that
// wait for it, and the prefill of what it has not cached (Forecast). Where no group has cached any
// of the prompt, choose_group_by_end() decides alone. One thread; lives for one pass over the
// waiting requests, in the order of their turns.
//
// While others wait, a second of a group's time delays them too: on each group, the number of
// waiting requests divided by the number of groups. So what a group has to compute counts once more
// for each of these.
//
// A request may wait for a busy group that has its prefix while another group is idle, but no
// longer than this saves, for itself and for those that wait. So however wrong the forecast is, the
// request ends later by at most what was to be saved (the rule of renting before buying: Karlin,
// Manasse, Rudolph, Sleator, Algorithmica 1988).
#pragma once

#include <algorithm>
#include <map>
#include <span>

#include "coordinator/groups/group.h"
#include "coordinator/order/forecast.h"
#include "coordinator/order/group_by_end.h"

namespace millrace::coordinator {

class PrefixChoice {
 public:
  PrefixChoice(std::span<Group* const> groups, int64_t num_waiting, const Forecast& forecast,
               TimePoint now, GroupOrder order = GroupOrder::kSoonestEnd)
      : groups_(groups),
        price_(1 + static_cast<double>(num_waiting) /
                       static_cast<double>(std::max<size_t>(1, groups.size()))),
        forecast_(forecast),
        now_(now),
        order_(order) {}

  // Null if the request should wait.
  Group* choose(Request& request);

 private:
  Group* choose_without_prefix(const Request& request) const;
  double cost_s(const Group& group, const Request& request) const;
  bool is_patient(Request& request, const Group& idle, const Group& busy) const;

  const std::span<Group* const> groups_;
  const double price_;  // of a second of a group's time
  const Forecast& forecast_;
  const TimePoint now_;
  const GroupOrder order_;
  std::map<const Group*, double> claimed_s_;  // by requests of this pass that wait for the group
};

}  // namespace millrace::coordinator
