// SPDX-License-Identifier: Apache-2.0
// Decides whether a prompt may join the queue: whether the service is open, a group serves the
// model, the prompt is within its length and vocabulary, the id is free, the caller has quota left,
// the deadline can be met, and there is room. Takes no prompt after close().
#pragma once

#include <optional>
#include <variant>

#include "coordinator/access/caller.h"
#include "coordinator/groups/group_registry.h"
#include "coordinator/order/expected_end.h"
#include "coordinator/order/turn_order.h"
#include "coordinator/requests/prefill_body.h"
#include "coordinator/requests/refusal.h"
#include "coordinator/requests/request_tracker.h"
#include "coordinator/schedule/prefill_pace.h"
#include "coordinator/schedule/quota_ledger.h"
#include "coordinator/schedule/scheduler_settings.h"

namespace millrace::coordinator {

class Admission {
 public:
  Admission(const SchedulerSettings& settings, RequestTracker& requests,
            const GroupRegistry& groups, const TurnOrder& turns, const PrefillPace& pace,
            const Clock& clock)
      : settings_(settings),
        requests_(requests),
        groups_(groups),
        turns_(turns),
        pace_(pace),
        clock_(clock) {}

  // The request for a prompt that a group can take, or why there is none. `body.request_id` must be
  // valid. Nothing is queued or charged.
  std::variant<std::shared_ptr<Request>, Refusal> open(PrefillBody body,
                                                       const Caller& caller) const;
  // Whether a request that has open()ed may wait for the prefill of another.
  std::optional<Refusal> check_joining(const Request& request, const Caller& caller,
                                       bool sent_again) const;
  // Whether it may wait for one of its own.
  std::optional<Refusal> check_queueing(const Request& request, const Caller& caller) const;
  // Queues and charges it, or says why there is no room.
  std::optional<Refusal> queue(const std::shared_ptr<Request>& request, const Caller& caller);

  // All of these for a prompt that is not shared.
  std::optional<Refusal> admit(PrefillBody body, const Caller& caller = Caller::anybody());

  // When a request that has open()ed should end if it were queued now, or why it would not be: for
  // what check_queueing() checks except the deadline. Nothing is queued or charged.
  std::variant<ExpectedEnd, Refusal> forecast(const std::shared_ptr<Request>& request,
                                              const Caller& caller) const;
  // The same for one that joins this prefill.
  std::variant<ExpectedEnd, Refusal> forecast_rest(const std::shared_ptr<Request>& prefill) const;

  void close() { closed_ = true; }
  bool closed() const { return closed_; }
  // Open, and a group takes requests.
  bool ready() const;

 private:
  std::optional<Refusal> check(const PrefillBody& body) const;
  std::optional<Refusal> check_id(const std::string& id, const Caller& caller,
                                  bool sent_again) const;
  std::optional<Refusal> check_quota(const Caller& caller) const;
  std::optional<Refusal> check_deadline(const Request& request) const;
  Refusal unserved(const std::string& model, const std::map<std::string, ModelOffer>& offers) const;
  std::shared_ptr<Request> make_request(PrefillBody body, const Caller& caller) const;

  const SchedulerSettings& settings_;
  RequestTracker& requests_;
  const GroupRegistry& groups_;
  const TurnOrder& turns_;
  const PrefillPace& pace_;
  const Clock& clock_;
  QuotaLedger quotas_;
  bool closed_ = false;
};

}  // namespace millrace::coordinator
