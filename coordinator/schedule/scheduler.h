// Decides what happens to every request: admission, the queue, which group takes it, deadlines,
// cancellation, leases, and what a lost group means. No sockets, no threads, no waiting: events in
// (calls), messages out (GroupLink), and one callback when a request has changed. The asynchronous
// shell (server.h) owns the one thread that calls it; tests call it with a fake clock.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/schedule/group_registry.h"
#include "coordinator/schedule/prefill_body.h"
#include "coordinator/schedule/probes.h"
#include "coordinator/schedule/refusal.h"
#include "coordinator/schedule/request.h"
#include "coordinator/schedule/request_queue.h"
#include "coordinator/schedule/request_table.h"
#include "protocol/attended_time.h"

namespace millrace::coordinator {

struct SchedulerSettings {
  int64_t max_queued_requests = 256;
  int64_t max_queued_bytes = 1ll << 30;
  int64_t max_ended_records = 4096;
  Duration keep_ended = std::chrono::minutes(5);
  Duration default_deadline = std::chrono::minutes(10);
  Duration default_lease = std::chrono::minutes(1);
  Duration heartbeat_interval = std::chrono::milliseconds(250);
  // A group counts as lost after this silence, of which time that this process itself lost is no
  // part. A process that dies is noticed by its connection; what is left are processes that hang, and
  // those of a busy machine, which are late.
  Duration group_patience = std::chrono::seconds(10);
  // The same where its host acknowledges nothing either.
  Duration host_patience = std::chrono::seconds(5);
  GroupHealth::Rests rests;
  // How long requests wait for a group of their model to come back before they fail.
  Duration group_return = std::chrono::seconds(30);
  // How long a group may take to end a cancelled request before it counts as lost, beyond what it
  // needs to look up (Group::longest_step): its ranks meet once more.
  Duration cancel_patience = std::chrono::minutes(1);
};

class Scheduler {
 public:
  using OnChange = std::function<void(const Request&)>;

  // `on_change` must not call back into the scheduler.
  Scheduler(const SchedulerSettings& settings, const Clock& clock, Probes& probes,
            OnChange on_change);

  // Requests. `body.request_id` must be set. An admitted request always ends, by itself or by its
  // deadline.
  std::optional<Refusal> submit(PrefillBody body);
  std::shared_ptr<const Request> find(const std::string& id) const { return table_.find(id); }
  // Ends a request that waits or runs; releases the lease of one that is done.
  Result<void> cancel(const std::string& id, const std::string& why);
  // Sends the wish to the group; its answer arrives as Request::lease_answer.
  Result<void> renew_lease(const std::string& id, const std::string& lease_id, Duration lease);
  Result<void> release_lease(const std::string& id, const std::string& lease_id);

  // Groups. A group that is let in is told so over its link; a refusal is the caller's to tell.
  Result<void> add_group(const protocol::Register& description, GroupLink& link);
  // The connection ended or is to be given up; `link` is not used any more afterwards. Nothing
  // happens if another connection has taken the group over.
  void remove_group(const std::string& group_id, const GroupLink& link, const std::string& why);
  // An error means that the group breaks the protocol; the caller closes the connection.
  Result<void> receive(const std::string& group_id, protocol::Envelope envelope);

  // Passing of time; to be called several times a heartbeat interval.
  void tick();

  // From now on nothing is admitted.
  void drain() { draining_ = true; }
  // Ends everything that waits or runs.
  void abandon(const std::string& why);
  bool draining() const { return draining_; }
  bool busy() const { return queue_.size() > 0 || running_ > 0; }
  bool ready() const;
  std::map<std::string, ModelOffer> offers() const { return groups_.offers(); }

 private:
  std::optional<Refusal> check(const PrefillBody& body) const;
  Result<void> enqueue(PrefillBody body);
  void dispatch();
  static std::optional<int> refusals(const Group& group, const Request& request);
  Group* choose(const Request& request);
  bool hopeless(const Request& request);
  void start(Group& group, std::shared_ptr<Request> request);
  void give_back(std::shared_ptr<Request> request, Error why);
  void end_hopeless(const std::shared_ptr<Request>& request);
  int retry_after_s(const Request& request);
  int retry_after_full_queue_s() const;
  void fail(const std::shared_ptr<Request>& request, Error why);
  void cancel_on_group(Request& request);
  Result<Request*> leased(const std::string& id, const std::string& lease_id);
  void end_lease(Request& request, LeaseState how);
  void lose(std::unique_ptr<Group> group, const std::string& why);
  void restore_leases(const std::string& group_id);

  void on_progress(Group& group, const std::string& request_id);
  void on_heartbeat(Group& group, const protocol::Heartbeat& message);
  void on_prefill_opened(Group& group, protocol::PrefillOpened message);
  void on_layer_done(Group& group, const protocol::LayerDone& message);
  Result<void> on_prefill_done(Group& group, protocol::PrefillDone message);
  void on_prefill_failed(Group& group, const protocol::PrefillFailed& message);
  Result<void> on_lease_held(Group& group, protocol::LeaseHeld message);
  Result<void> on_lease_reply(Group& group, const protocol::LeaseReply& message);

  void expire_deadlines(TimePoint now);
  void expire_leases(TimePoint now);
  void drop_silent_groups();
  void drop_groups_that_do_not_end(TimePoint now);
  void fail_orphans(TimePoint now);
  void beat(TimePoint now);
  void ended(const Request& request);
  void changed(const Request& request);
  void count_waiting();

  SchedulerSettings settings_;
  const Clock& clock_;
  Probes& probes_;
  OnChange on_change_;
  RequestQueue queue_;
  RequestTable table_;
  GroupRegistry groups_;
  int64_t running_ = 0;
  bool draining_ = false;
  protocol::AttendedTime attended_;
  TimePoint last_beat_;
  double mean_prefill_s_ = 1;  // of late
  uint64_t beats_ = 0;
  std::map<std::string, TimePoint> orphaned_since_;  // models with requests waiting but no group
};

}  // namespace millrace::coordinator
