// Whose turn it is among the requests that wait. One thread. With QueueOrder::kFair:
//
// 1. Requests that a group gave back: they have waited already.
// 2. Of the owners, the one who has had least of the groups' time (ServiceLedger); of equal ones, that
//    of the request with the highest response ratio among their first.
// 3. Of that owner's requests, those of the lowest priority (WaitingPriorities). A priority never counts
//    against another owner's requests: it is the client's to set.
// 4. Of these, the one with the highest response ratio, (waited + expected) / expected, where expected
//    is the Forecast (Brinch Hansen, "Operating System Principles", 1973). A short prompt overtakes a
//    long one, but not for ever: one that has waited k times what it takes comes before all that have
//    waited less than k times what they take.
// 5. In order of arrival.
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
  using Queue = std::deque<std::shared_ptr<Request>>;
  using Requests = std::vector<std::shared_ptr<Request>>;

  explicit TurnOrder(QueueOrder order = QueueOrder::kFair) : order_(order) {}

  // `waiting` in order of arrival, those that were given back in front.
  Requests arrange(const Queue& waiting, std::span<const Group* const> groups, TimePoint now) const;
  // Of `waiting`, in their order, those whose turn comes before that of `request`, which comes now, even
  // if it waits for `longest`: as far as they want the same model, and by what is known now. Without
  // those that a group gave back, which may be waiting for a certain one.
  Requests surely_before(const Request& request, const Queue& waiting,
                         std::span<const Group* const> groups, TimePoint now,
                         Duration longest) const;
  // It is given to a group, to run beside as many as it says.
  void started(const Group& group, Request& request, TimePoint now);
  // The group has ended it, or is gone; it is no longer among the group's. Only a prompt that was
  // computed to its last token, all but so many that were cached, teaches something about times.
  // `by_group_s`: by the group's own clock. A coordinator that did not run for a while hears late of what
  // has ended, which is no time of the group's; and prompts side by side end when the slowest has.
  void stopped(const Group& group, const Request& request, TimePoint now, bool whole,
               int64_t cached_tokens = 0, std::optional<double> by_group_s = std::nullopt);

  const Forecast& forecast() const { return forecast_; }

 private:
  double expected_s(const Request& request, std::span<const Group* const> groups) const;

  QueueOrder order_;
  Forecast forecast_;
  ServiceLedger ledger_;
};

}  // namespace millrace::coordinator
