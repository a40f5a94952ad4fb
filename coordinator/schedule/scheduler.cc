// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/scheduler.h"

#include "common/errc_wire.h"

namespace millrace::coordinator {

Scheduler::Scheduler(const SchedulerSettings& settings, const Clock& clock,
                     CoordinatorMetrics& metrics, RequestTracker::OnChange on_change)
    : settings_(settings),
      clock_(clock),
      metrics_(metrics),
      requests_(RequestQueue(settings.max_queued_requests, settings.max_queued_bytes),
                RequestTable(settings.max_ended_records, settings.keep_ended), clock, metrics,
                [this, on_change = std::move(on_change)](const Request& request) {
                  on_change(request);
                  shared_.follow(request);
                }),
      groups_(settings.rests),
      turns_(settings.queue_order),
      admission_(settings_, requests_, groups_, turns_, pace_, clock),
      dispatcher_(requests_, groups_, turns_, clock, settings.group_order),
      canceller_(requests_, groups_, clock),
      replies_(requests_, dispatcher_, turns_, pace_, clock),
      leases_(requests_, groups_, clock, metrics),
      shared_(settings_, requests_, groups_, canceller_, leases_, clock, metrics),
      orphans_(settings.group_return, requests_, clock),
      membership_(settings_, groups_, dispatcher_, leases_, orphans_, metrics),
      watch_(settings_, groups_, clock) {}

std::optional<Refusal> Scheduler::submit(PrefillBody body, const Caller& caller) {
  auto opened = admission_.open(std::move(body), caller);
  const auto* request = std::get_if<std::shared_ptr<Request>>(&opened);
  auto refusal = request == nullptr ? std::optional(std::get<Refusal>(std::move(opened)))
                                    : admit(*request, caller);
  if (refusal) {
    metrics_.refused(*refusal);
  } else {
    dispatcher_.dispatch();
  }
  return refusal;
}

std::optional<Refusal> Scheduler::admit(const std::shared_ptr<Request>& request,
                                        const Caller& caller) {
  if (shared_.prefill_for(*request)) {
    const bool again = shared_.is_sent_again(*request);
    if (auto refusal = admission_.check_joining(*request, caller, again)) return refusal;
    shared_.join(request);
    return std::nullopt;
  }
  if (auto refusal = admission_.check_queueing(*request, caller)) return refusal;
  shared_.name(*request);
  if (auto refusal = admission_.queue(request, caller)) return refusal;
  shared_.open(request);
  return std::nullopt;
}

std::variant<ExpectedEnd, Refusal> Scheduler::forecast(PrefillBody body,
                                                       const Caller& caller) const {
  auto opened = admission_.open(std::move(body), caller);
  if (auto* refusal = std::get_if<Refusal>(&opened)) return std::move(*refusal);
  const auto& request = std::get<std::shared_ptr<Request>>(opened);
  const auto prefill = shared_.prefill_for(*request);
  if (!prefill) return admission_.forecast(request, caller);
  const bool again = shared_.is_sent_again(*request);
  if (auto refusal = admission_.check_joining(*request, caller, again)) return *std::move(refusal);
  return admission_.forecast_rest(prefill);
}

void Scheduler::leave(const Request& record, const std::string& why) {
  const auto request = requests_.table().find(record.id);
  if (request.get() == &record) shared_.leave(request, Error(Errc::kCancelled, why));
}

std::shared_ptr<const Request> Scheduler::find(const std::string& id) const {
  return requests_.table().find(id);
}

Result<void> Scheduler::cancel(const std::string& id, const std::string& why) {
  const auto request = requests_.table().find(id);
  if (!request) return error(Errc::kNotFound, "no request '{}'", id);
  if (!request->ended()) {
    shared_.cancel(request, Error(Errc::kCancelled, why));
    return {};
  }
  if (request->failure) shared_.cancel_unattended(id);
  if (request->lease != LeaseState::kActive) return {};
  return leases_.release(id, request->result->manifest().lease_id());
}

Result<void> Scheduler::renew_lease(const std::string& id, const std::string& lease_id,
                                    Duration lease) {
  return leases_.renew(id, lease_id, lease);
}

Result<void> Scheduler::release_lease(const std::string& id, const std::string& lease_id) {
  return leases_.release(id, lease_id);
}

Result<void> Scheduler::add_group(const protocol::Register& description, GroupLink& link) {
  MR_RETURN_IF_ERROR(membership_.join(description, link, watch_.attended()));
  dispatcher_.dispatch();
  return {};
}

void Scheduler::remove_group(const std::string& group_id, const GroupLink& link,
                             const std::string& why) {
  membership_.leave(group_id, link, why);
  dispatcher_.dispatch();
}

Result<void> Scheduler::receive(const std::string& group_id, protocol::Envelope envelope) {
  Group* group = groups_.find(group_id);
  if (group == nullptr) return {};  // another connection has just taken it over
  watch_.received(*group);
  switch (envelope.body_case()) {
    case protocol::Envelope::kHeartbeat: {
      const protocol::Heartbeat& message = envelope.heartbeat();
      metrics_.heartbeat(group->description.group_name(), message);
      group->pools.update(message);
      if (message.has_room()) group->report_room(message.room().free_prompt_tokens());
      if (group->prefixes.missed(message.cached_prefixes())) ask_for_prefixes(*group);
      return {};
    }
    case protocol::Envelope::kPrefillStarted:
      replies_.started(*group, envelope.prefill_started().request_id());
      return {};
    case protocol::Envelope::kPrefillOpened:
      replies_.opened(*group, std::move(*envelope.mutable_prefill_opened()));
      return {};
    case protocol::Envelope::kLayerDone:
      replies_.layer_done(*group, envelope.layer_done());
      return {};
    case protocol::Envelope::kPrefillDone:
      return replies_.done(*group, std::move(*envelope.mutable_prefill_done()));
    case protocol::Envelope::kPrefillFailed: {
      const auto& message = envelope.prefill_failed();
      // Between the layers of another prompt it can wait instead.
      const auto preempting = group->preempting;
      const bool preempts = preempting && preempting->id_at_group() == message.request_id();
      const bool needs_room =
          errc_from_wire(message.error().code()) == Errc::kExhausted && !preempts;
      replies_.failed(*group, message, needs_room && shared_.make_room(group_id));
      return {};
    }
    case protocol::Envelope::kCachedPrefixes:
      if (group->prefixes.missed(envelope.cached_prefixes())) ask_for_prefixes(*group);
      return {};
    case protocol::Envelope::kLeaseHeld:
      return leases_.reported(*group, std::move(*envelope.mutable_lease_held()));
    case protocol::Envelope::kLeaseReply:
      return leases_.answered(*group, envelope.lease_reply());
    case protocol::Envelope::kDrain:
      group->draining = true;
      shared_.give_up_on(group_id);
      return {};
    default:
      return error(Errc::kInvalidArgument, "group '{}' sent message {}, which groups do not send",
                   group->description.group_name(), static_cast<int>(envelope.body_case()));
  }
}

void Scheduler::ask_for_prefixes(Group& group) {
  protocol::Envelope envelope;
  envelope.mutable_resend_cached_prefixes();
  group.link->send(envelope);
}

void Scheduler::tick() {
  canceller_.expire_deadlines(
      [this](const auto& request, const Error& why) { shared_.leave(request, why); });
  leases_.expire();
  for (const auto& [group, why] : watch_.find_lost()) membership_.drop(*group, why);
  orphans_.expire();
  requests_.table().forget(clock_.now());
  shared_.count();
  watch_.beat();
  dispatcher_.dispatch();
  const auto oldest = requests_.queue().oldest();
  metrics_.oldest_queued(oldest ? seconds(clock_.now() - *oldest) : 0);
}

void Scheduler::abandon(const std::string& why) {
  canceller_.cancel_all(Error(Errc::kUnavailable, why));
}

}  // namespace millrace::coordinator
