// SPDX-License-Identifier: Apache-2.0
// Decides what happens to every request. A facade: Admission lets requests in, Dispatcher hands
// them to groups, PrefillReplies and Leases hear what groups make of them, Canceller ends them
// early, GroupMembership and GroupWatch know which groups serve. No sockets, no threads, no
// waiting: events come in as calls, messages go out through GroupLink, and one callback tells that
// a request has changed. The asynchronous shell (server.h) owns the one thread that calls it; tests
// use a fake clock.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/groups/group_registry.h"
#include "coordinator/order/turn_order.h"
#include "coordinator/requests/coordinator_metrics.h"
#include "coordinator/requests/prefill_body.h"
#include "coordinator/requests/refusal.h"
#include "coordinator/requests/request_tracker.h"
#include "coordinator/schedule/admission.h"
#include "coordinator/schedule/canceller.h"
#include "coordinator/schedule/dispatcher.h"
#include "coordinator/schedule/group_membership.h"
#include "coordinator/schedule/group_watch.h"
#include "coordinator/schedule/leases.h"
#include "coordinator/schedule/orphan_watch.h"
#include "coordinator/schedule/prefill_pace.h"
#include "coordinator/schedule/prefill_replies.h"
#include "coordinator/schedule/scheduler_settings.h"
#include "coordinator/schedule/shared_prefills.h"

namespace millrace::coordinator {

class Scheduler {
 public:
  // `on_change` must not call back into the scheduler.
  Scheduler(const SchedulerSettings& settings, const Clock& clock, CoordinatorMetrics& metrics,
            RequestTracker::OnChange on_change);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Requests. `body.request_id` must be set. An admitted request always ends, by itself or by its
  // deadline.
  std::optional<Refusal> submit(PrefillBody body, const Caller& caller = Caller::anybody());
  // When the prompt should end if it were submitted now, or why it would be refused.
  std::variant<ExpectedEnd, Refusal> forecast(PrefillBody body,
                                              const Caller& caller = Caller::anybody()) const;
  std::shared_ptr<const Request> find(const std::string& id) const;
  // The client that waits for this answer is gone. What becomes of its request, it has said itself.
  void leave(const Request& record, const std::string& why);
  // Ends a request that waits or runs; releases the lease of a finished one.
  Result<void> cancel(const std::string& id, const std::string& why);
  // Sends the wish to the group; its answer arrives as Request::lease_answer.
  Result<void> renew_lease(const std::string& id, const std::string& lease_id, Duration lease);
  Result<void> release_lease(const std::string& id, const std::string& lease_id);

  // Groups. A group that is let in is told so over its link; the caller has to report a refusal.
  Result<void> add_group(const protocol::Register& description, GroupLink& link);
  // The connection has ended or is to be given up; `link` is not used afterwards. Does nothing if
  // another connection has taken the group over.
  void remove_group(const std::string& group_id, const GroupLink& link, const std::string& why);
  // An error means that the group breaks the protocol; the caller closes the connection.
  Result<void> receive(const std::string& group_id, protocol::Envelope envelope);
  std::map<std::string, ModelOffer> offers() const { return groups_.offers(); }

  // Time has passed; to be called several times per heartbeat interval.
  void tick();

  // Admits nothing from now on.
  void drain() {
    admission_.close();
    shared_.cancel_all_unattended();
  }
  // Ends everything that waits or runs.
  void abandon(const std::string& why);
  bool draining() const { return admission_.closed(); }
  bool busy() const { return requests_.busy(); }
  bool ready() const { return admission_.ready(); }

  // For those who only look.
  const GroupRegistry& groups() const { return groups_; }
  const RequestTracker& requests() const { return requests_; }
  const TurnOrder& turns() const { return turns_; }

 private:
  std::optional<Refusal> admit(const std::shared_ptr<Request>& request, const Caller& caller);
  static void ask_for_prefixes(Group& group);

  // Each member uses only those above it.
  const SchedulerSettings settings_;
  const Clock& clock_;
  CoordinatorMetrics& metrics_;
  RequestTracker requests_;
  GroupRegistry groups_;
  TurnOrder turns_;
  PrefillPace pace_;
  Admission admission_;
  Dispatcher dispatcher_;
  Canceller canceller_;
  PrefillReplies replies_;
  Leases leases_;
  SharedPrefills shared_;
  OrphanWatch orphans_;
  GroupMembership membership_;
  GroupWatch watch_;
};

}  // namespace millrace::coordinator
