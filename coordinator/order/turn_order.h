// SPDX-License-Identifier: Apache-2.0
// The order in which waiting requests get their turns. One thread. With QueueOrder::kFair:
//
// 1. Requests that a group gave back: they have waited already.
// 2. Of the owners, the one who has had the least of the groups' time (ServiceLedger); of equal
//    owners, the one whose first request has the highest response ratio.
// 3. Of that owner's requests, those with the lowest priority value (WaitingPriorities). A priority
//    never counts against another owner's requests, because the client sets it.
// 4. Of these, the one with the highest response ratio, (waited + expected) / expected, where
//    expected is the Forecast (Brinch Hansen, "Operating System Principles", 1973). A short prompt
//    overtakes a long one, but not for ever: one that has waited k times its expected time comes
//    before all that have waited less than k times theirs.
// 5. In order of arrival.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/order/forecast.h"
#include "coordinator/order/service_ledger.h"

namespace millrace::coordinator {

// In which order waiting requests get their turns.
enum class QueueOrder {
  kFair,     // as TurnOrder says
  kArrival,  // as they came
};

class TurnOrder {
 public:
  using Queue = std::deque<std::shared_ptr<Request>>;
  using Requests = std::vector<std::shared_ptr<Request>>;

  explicit TurnOrder(QueueOrder order = QueueOrder::kFair) : order_(order) {}

  // `waiting`: in order of arrival, with requests that were given back in front.
  Requests arrange(const Queue& waiting, std::span<const Group* const> groups, TimePoint now) const;
  // The requests of `waiting`, in their order, whose turn comes before that of `request`, which
  // arrives now, even if it waits for `longest`. Only those for the same model, by what is known
  // now, and without those that a group gave back, which may be waiting for a certain group.
  Requests surely_before(const Request& request, const Queue& waiting,
                         std::span<const Group* const> groups, TimePoint now,
                         Duration longest) const;
  // `request` is given to a group, where Request::num_side_by_side run at once.
  void started(const Group& group, Request& request, TimePoint now);
  // The group has ended the request or is gone; the request is no longer among the group's. Only a
  // prompt that was computed to its last token, apart from its cached tokens, teaches the forecast.
  // `by_group_s`: the time by the group's own clock. A coordinator that did not run for a while
  // hears late that a prompt has ended, and that delay is not the group's time; and prompts side by
  // side end when the slowest has.
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
