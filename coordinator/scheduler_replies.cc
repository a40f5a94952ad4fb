// What groups say about their requests, and leases.
#include "common/errc_wire.h"
#include "coordinator/scheduler.h"

namespace millrace::coordinator {

namespace {

bool works_on(const Group& group, const std::string& request_id) {
  return group.running != nullptr && group.running->id == request_id;
}

// As long as a client may ask for. What a group makes up could be more than a Duration holds.
constexpr uint64_t kMaxLeaseMs = 24 * 3600 * 1000;

Result<Duration> lease_from_wire(const Group& group, const Request& request, uint64_t lease_ms) {
  if (lease_ms <= kMaxLeaseMs) return Duration(std::chrono::milliseconds(lease_ms));
  return error(Errc::kInvalidArgument, "group '{}' gives request '{}' a lease of {} ms, limit {}",
               group.description.group_name(), request.id, lease_ms, kMaxLeaseMs);
}

Error from_wire(const protocol::ErrorInfo& info) {
  return Error(errc_from_wire(info.code()), info.message());
}

}  // namespace

void Scheduler::on_progress(Group& group, const std::string& request_id) {
  if (!works_on(group, request_id)) return;
  Request& request = *group.running;
  if (request.state != RequestState::kQueued) return;
  request.state = RequestState::kRunning;
  request.started_at = clock_.now();
  changed(request);
}

void Scheduler::on_prefill_opened(Group& group, const protocol::PrefillOpened& message) {
  if (!works_on(group, message.request_id())) return;
  on_progress(group, message.request_id());
  Request& request = *group.running;
  const bool wanted = request.handover == protocol::HANDOVER_STREAMING;
  if (request.ended() || request.opened || !wanted) return;
  request.opened = message.manifest();
  changed(request);
}

void Scheduler::on_layer_done(Group& group, const protocol::LayerDone& message) {
  if (!works_on(group, message.request_id())) return;
  on_progress(group, message.request_id());
  Request& request = *group.running;
  if (request.ended() || request.layer_density.size() >= request.num_layers) return;
  request.layer_density.push_back(message.density());
  changed(request);
}

Result<void> Scheduler::on_prefill_done(Group& group, const protocol::PrefillDone& message) {
  if (!works_on(group, message.request_id())) return {};
  MR_ASSIGN_OR_RETURN(const Duration lease,
                      lease_from_wire(group, *group.running, message.manifest().lease_ms()));
  on_progress(group, message.request_id());
  const std::shared_ptr<Request> request = std::exchange(group.running, nullptr);
  group.cancelled_at.reset();
  if (request->ended()) {
    // The cancellation came too late for the group; nobody will fetch the pages.
    protocol::Envelope envelope;
    envelope.mutable_lease_release()->set_request_id(request->id);
    envelope.mutable_lease_release()->set_lease_id(message.manifest().lease_id());
    group.link->send(envelope);
  } else {
    --running_;
    request->state = RequestState::kDone;
    request->ended_at = request->kept_since = clock_.now();
    request->result = message;
    request->lease = LeaseState::kActive;
    request->lease_ends = clock_.now() + lease;
    ended(*request);
  }
  dispatch();
  return {};
}

void Scheduler::on_prefill_failed(Group& group, const protocol::PrefillFailed& message) {
  if (!works_on(group, message.request_id())) return;
  const std::shared_ptr<Request> request = std::exchange(group.running, nullptr);
  group.cancelled_at.reset();
  fail(request, from_wire(message.error()));
  dispatch();
}

Result<void> Scheduler::on_lease_reply(Group& group, const protocol::LeaseReply& message) {
  const auto request = table_.find(message.request_id());
  if (!request || request->group_id != group.description.group_id() || !request->lease_call_open) {
    return {};
  }
  MR_ASSIGN_OR_RETURN(const Duration lease,
                      lease_from_wire(group, *request, message.expires_in_ms()));
  request->lease_call_open = false;
  if (message.has_error()) {
    request->lease_answer = Result<void>(from_wire(message.error()));
    if (request->lease == LeaseState::kActive &&
        request->lease_answer->error().code == Errc::kNotFound) {
      end_lease(*request, LeaseState::kExpired);
    }
  } else {
    request->lease_answer = Result<void>();
    request->lease_ends = clock_.now() + lease;
  }
  changed(*request);
  return {};
}

// ---- leases ----

Result<Request*> Scheduler::leased(const std::string& id, const std::string& lease_id) {
  const auto request = table_.find(id);
  if (!request) return error(Errc::kNotFound, "no request '{}'", id);
  if (request->state != RequestState::kDone) {
    return error(Errc::kNotFound, "request '{}' holds no lease: it is {}", id,
                 request_state_name(request->state));
  }
  if (request->result->manifest().lease_id() != lease_id) {
    return error(Errc::kNotFound, "'{:.128}' is not the lease of request '{}'", lease_id, id);
  }
  if (request->lease != LeaseState::kActive) {
    return error(Errc::kNotFound, "the lease of request '{}' is {}", id,
                 lease_state_name(request->lease));
  }
  return request.get();
}

Result<void> Scheduler::renew_lease(const std::string& id, const std::string& lease_id,
                                    Duration lease) {
  MR_ASSIGN_OR_RETURN(Request * request, leased(id, lease_id));
  if (request->lease_call_open) {
    return error(Errc::kExhausted, "another renewal of '{}' is under way", id);
  }
  Group* group = groups_.find(request->group_id);
  MR_CHECK(group != nullptr, "request {}: lease is active but group {} is gone", id,
           request->group_id);
  request->lease_call_open = true;
  request->lease_answer.reset();
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_lease_renew();
  message.set_request_id(id);
  message.set_lease_id(lease_id);
  message.set_lease_ms(
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(lease).count()));
  group->link->send(envelope);
  return {};
}

Result<void> Scheduler::release_lease(const std::string& id, const std::string& lease_id) {
  MR_ASSIGN_OR_RETURN(Request * request, leased(id, lease_id));
  if (Group* group = groups_.find(request->group_id)) {
    protocol::Envelope envelope;
    envelope.mutable_lease_release()->set_request_id(id);
    envelope.mutable_lease_release()->set_lease_id(lease_id);
    group->link->send(envelope);
  }
  end_lease(*request, LeaseState::kReleased);
  return {};
}

void Scheduler::end_lease(Request& request, LeaseState how) {
  request.lease = how;
  if (request.lease_call_open) {
    request.lease_call_open = false;
    request.lease_answer = Result<void>(error(Errc::kNotFound, "the lease of request '{}' is {}",
                                              request.id, lease_state_name(how)));
  }
  request.kept_since = clock_.now();
  probes_.lease_ended(how);
  changed(request);
}

}  // namespace millrace::coordinator
