// Whose turn it is among the requests that wait. One thread. With QueueOrder::kFair:
//
// 1. Requests that a group gave back: they have waited already.
// 2. Of the owners, the one who has had least of the groups' time (ServiceLedger).
// 3. Of that owner's requests, the one with the highest response ratio, (waited + expected) /
//    expected, where expected is the Forecast (Brinch Hansen, "Operating System Principles", 1973). A
//    short prompt overtakes a long one, but not for ever: one that has waited k times what it takes
//    comes before all that have waited less than k times what they take.
// 4. In order of arrival.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/order/forecast.h"
#include "coordinator/order/queue_order.h"
#include "coordinator/order/service_ledger.h"

namespace millrace::coordinator {

class TurnOrder {
 public:
  using Requests = std::vector<std::shared_ptr<Request>>;

  explicit TurnOrder(QueueOrder order = QueueOrder::kFair) : order_(order) {}

  // `waiting` in order of arrival, those that were given back in front.
  Requests arrange(const std::deque<std::shared_ptr<Request>>& waiting,
                   std::span<const Group* const> groups, TimePoint now) const;
  // It is given to a group, to run beside as many as it says.
  void started(const Group& group, Request& request, TimePoint now);
  // The group has ended it, or is gone; it is no longer among the group's. Only a prompt that was
  // computed to its last token, all but so many that were cached, teaches something about times. `in_lane`: of one
  // that ran in a lane, as it says itself; those beside it may have taken longer.
  void stopped(const Group& group, const Request& request, TimePoint now, bool whole,
               int64_t cached_tokens = 0, std::optional<Duration> in_lane = std::nullopt);

  const Forecast& forecast() const { return forecast_; }

 private:
  QueueOrder order_;
  Forecast forecast_;
  ServiceLedger ledger_;
};

}  // namespace millrace::coordinator
