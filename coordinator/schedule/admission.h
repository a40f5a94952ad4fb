// Decides whether a prompt may join the queue: is the service open, does a group serve the model, is
// the prompt within its length and vocabulary, is the id free, has the caller a quota left, can the
// deadline be met, is there room. Takes no prompt after close().
#pragma once

#include <optional>

#include "coordinator/access/caller.h"
#include "coordinator/groups/group_registry.h"
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

  // Queues the prompt, or says why not. `body.request_id` must be valid.
  std::optional<Refusal> admit(PrefillBody body, const Caller& caller = Caller::anybody());

  void close() { closed_ = true; }
  bool closed() const { return closed_; }
  // Open, and a group takes requests.
  bool ready() const;

 private:
  std::optional<Refusal> check(const PrefillBody& body, const Caller& caller) const;
  std::optional<Refusal> check_quota(const Caller& caller) const;
  std::optional<Refusal> check_deadline(const Request& request) const;
  Refusal unserved(const std::string& model, const std::map<std::string, ModelOffer>& offers) const;
  std::shared_ptr<Request> make_request(PrefillBody body) const;

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
