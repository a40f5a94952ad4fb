// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/leases.h"

#include "common/log.h"
#include "common/secret.h"
#include "coordinator/schedule/reply_checks.h"
#include "coordinator/text/request_id.h"
#include "coordinator/text/time_forms.h"

namespace millrace::coordinator {

namespace {

// More than a group's store can hold.
constexpr int64_t kMaxLeasesTold = 65536;

Result<void> check(Group& group, const protocol::LeaseHeld& message) {
  const protocol::PrefillDone& done = message.done();
  if (++group.leases_told > kMaxLeasesTold) {
    return error(Errc::kInvalidArgument, "group '{}' reports more than {} leases",
                 group.description.group_name(), kMaxLeasesTold);
  }
  if (!check_request_id(done.request_id()).ok() ||
      done.manifest().model() != group.description.model().name()) {
    return error(Errc::kInvalidArgument,
                 "group '{}' reports a lease of request '{:.128}', model '{:.128}'",
                 group.description.group_name(), done.request_id(), done.manifest().model());
  }
  const auto lease = checked_lease(group, done.request_id(), message.expires_in_ms());
  if (!lease.ok()) return lease.error();
  return check_times(group, done);
}

// The record that the request would have had. When it waited and ran is no longer known, only how
// long it ran.
std::shared_ptr<Request> record_of(const Group& group, protocol::PrefillDone done, TimePoint now) {
  auto request = std::make_shared<Request>();
  request->id = done.request_id();
  request->owner = done.owner();
  request->model = done.manifest().model();
  request->num_tokens = static_cast<int64_t>(done.manifest().num_tokens());
  request->group_id = group.description.group_id();
  request->group_name = group.description.group_name();
  request->num_layers = group.description.model().num_layers();
  request->state = RequestState::kDone;
  double prefill_s = 0;
  for (const auto& stage : done.stages()) prefill_s += stage.seconds();
  const bool plausible = prefill_s >= 0 && prefill_s < 24 * 3600;
  request->ended_at = request->kept_since = now;
  request->started_at = request->queued_at =
      now - std::chrono::duration_cast<Duration>(
                std::chrono::duration<double>(plausible ? prefill_s : 0));
  request->lease = LeaseState::kActive;
  request->result = std::make_shared<const protocol::PrefillDone>(std::move(done));
  return request;
}

}  // namespace

Result<Request*> Leases::find_active(const std::string& id, const std::string& lease_id) {
  const auto request = requests_.table().find(id);
  if (!request) return error(Errc::kNotFound, "no request '{}'", id);
  if (request->state != RequestState::kDone) {
    return error(Errc::kNotFound, "request '{}' has no lease: it is {}", id,
                 request_state_name(request->state));
  }
  if (!same_secret(request->result->manifest().lease_id(), lease_id)) {
    return error(Errc::kNotFound, "'{:.128}' is not the lease of request '{}'", lease_id, id);
  }
  if (request->lease != LeaseState::kActive) {
    return error(Errc::kNotFound, "the lease of request '{}' is {}", id,
                 lease_state_name(request->lease));
  }
  return request.get();
}

Result<void> Leases::renew(const std::string& id, const std::string& lease_id, Duration lease) {
  MR_ASSIGN_OR_RETURN(Request * request, find_active(id, lease_id));
  if (request->lease_call_open) return {};
  Group* group = groups_.find(request->group_id);
  MR_CHECK(group != nullptr, "request {}: lease is active but group {} is gone", id,
           request->group_id);
  request->lease_call_open = true;
  request->lease_answer.reset();
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_lease_renew();
  message.set_request_id(id);
  message.set_lease_id(lease_id);
  message.set_lease_ms(to_wire_ms(lease));
  group->link->send(envelope);
  requests_.table().reschedule(*request);
  return {};
}

Result<void> Leases::release(const std::string& id, const std::string& lease_id) {
  MR_ASSIGN_OR_RETURN(Request * request, find_active(id, lease_id));
  if (Group* group = groups_.find(request->group_id)) group->send_release(id, lease_id);
  end(*request, LeaseState::kReleased);
  return {};
}

Result<void> Leases::answered(Group& group, const protocol::LeaseReply& message) {
  const auto request = requests_.table().find(message.request_id());
  if (!request || request->group_id != group.description.group_id() || !request->lease_call_open) {
    return {};
  }
  MR_ASSIGN_OR_RETURN(const Duration lease,
                      checked_lease(group, request->id, message.expires_in_ms()));
  request->lease_call_open = false;
  if (message.has_error()) {
    request->lease_answer = Result<void>(checked_error(message.error()));
    if (request->lease == LeaseState::kActive &&
        request->lease_answer->error().code == Errc::kNotFound) {
      end(*request, LeaseState::kExpired);
    }
  } else {
    request->lease_answer = Result<void>();
    request->lease_ends = clock_.now() + lease;
  }
  requests_.changed(*request);
  return {};
}

Result<void> Leases::reported(Group& group, protocol::LeaseHeld message) {
  MR_RETURN_IF_ERROR(check(group, message));
  const std::string& id = message.done().request_id();
  const TimePoint ends = clock_.now() + std::chrono::milliseconds(message.expires_in_ms());
  const auto known = requests_.table().find(id);
  const bool same = known && known->result && known->group_id == group.description.group_id() &&
                    known->result->manifest().lease_id() == message.done().manifest().lease_id();
  const std::string lease_id = message.done().manifest().lease_id();
  if (same) {
    if (known->lease != LeaseState::kActive && known->lease != LeaseState::kLost) {
      group.send_release(id, lease_id);  // the group does not know that the lease is over
      return {};
    }
    known->lease = LeaseState::kActive;
    known->lease_ends = ends;
    requests_.table().reschedule(*known);
    return {};
  }
  // The client was told that the request failed, or has sent it again: nobody will ask for this
  // cache.
  if (known && (known->in_use() || known->state == RequestState::kFailed)) {
    group.send_release(id, lease_id);
    return {};
  }
  const auto request = record_of(group, std::move(*message.mutable_done()), clock_.now());
  request->lease_ends = ends;
  requests_.table().insert(request);
  return {};
}

void Leases::expire() {
  const TimePoint now = clock_.now();
  while (const auto request = requests_.table().first_due(RequestTable::Due::kLeaseEnd, now)) {
    end(*request, LeaseState::kExpired);
  }
  metrics_.active_leases(requests_.table().num_leased());
}

void Leases::lose(const std::string& group_id) {
  for (const auto& request : requests_.table().all()) {
    if (request->group_id != group_id) continue;
    if (request->lease == LeaseState::kActive) end(*request, LeaseState::kLost);
  }
}

void Leases::restore(const std::string& group_id) {
  for (const auto& request : requests_.table().all()) {
    if (request->group_id != group_id || request->lease != LeaseState::kLost ||
        request->lease_ends <= clock_.now()) {
      continue;
    }
    request->lease = LeaseState::kActive;
    requests_.table().reschedule(*request);
  }
}

void Leases::end(Request& request, LeaseState how) {
  request.lease = how;
  if (Group* group = groups_.find(request.group_id)) group->count_room(request.num_tokens);
  if (request.lease_call_open) {
    request.lease_call_open = false;
    request.lease_answer = Result<void>(error(Errc::kNotFound, "the lease of request '{}' is {}",
                                              request.id, lease_state_name(how)));
  }
  request.kept_since = clock_.now();
  metrics_.lease_ended(how);
  requests_.changed(request);
}

}  // namespace millrace::coordinator
