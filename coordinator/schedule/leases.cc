// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/leases.h"

#include <algorithm>

#include "common/log.h"
#include "common/secret.h"
#include "coordinator/schedule/reply_checks.h"
#include "coordinator/text/limits.h"
#include "coordinator/text/request_id.h"
#include "coordinator/text/time_forms.h"

namespace millrace::coordinator {

namespace {

// More than a group's store can hold.
constexpr int64_t kMaxLeasesTold = 65536;
// A group keeps a cache with several leases for longer than the last of them, and is told when that
// ends: a record may join up to the end of another's lease.
constexpr std::chrono::seconds kSharedSlack{10};

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
  if (done.has_head_recalls()) done.mutable_head_recalls()->clear_density();  // as of old records
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
  request->lease_asked = lease;
  const Duration needed =
      request->shares_lease ? std::max(lease, left_for_others(*request)) + kSharedSlack : lease;
  send_renewal(*group, *request, needed, requests_.table().find(id));
  requests_.table().reschedule(*request);
  return {};
}

void Leases::send_renewal(Group& group, const Request& request, Duration lease,
                          std::shared_ptr<Request> caller) {
  protocol::Envelope envelope;
  auto& message = *envelope.mutable_lease_renew();
  message.set_request_id(request.id_at_group());
  message.set_lease_id(request.result->manifest().lease_id());
  message.set_lease_ms(std::min<uint64_t>(to_wire_ms(lease), kMaxDurationMs));
  group.link->send(envelope);
  calls_[{request.group_id, request.id_at_group()}].push_back(std::move(caller));
}

Leases::Holders Leases::others(const Request& request) const {
  Holders out;
  if (!request.shares_lease) return out;
  for (auto& record : requests_.table().known_to_groups_as(request.id_at_group())) {
    if (record.get() != &request && record->result == request.result) {
      out.push_back(std::move(record));
    }
  }
  return out;
}

bool Leases::is_last(const Request& request) const {
  return std::ranges::none_of(
      others(request), [](const auto& record) { return record->lease == LeaseState::kActive; });
}

Duration Leases::left_for_others(const Request& request) const {
  Duration left{};
  for (const auto& record : others(request)) {
    if (record->lease != LeaseState::kActive) continue;
    left = std::max({left, record->lease_ends - clock_.now(),
                     record->lease_call_open ? record->lease_asked : Duration::zero()});
  }
  return left;
}

void Leases::share(const Request& request) {
  Group* group = groups_.find(request.group_id);
  if (group == nullptr) return;
  const Duration own = request.lease_ends - clock_.now();
  send_renewal(*group, request, std::max(own, left_for_others(request)) + kSharedSlack, nullptr);
}

void Leases::pass_on(Request& request) {
  request.lease = LeaseState::kReleased;
  request.kept_since = clock_.now();
  requests_.changed(request);
}

Result<void> Leases::release(const std::string& id, const std::string& lease_id) {
  MR_ASSIGN_OR_RETURN(Request * request, find_active(id, lease_id));
  Group* group = groups_.find(request->group_id);
  if (group != nullptr && is_last(*request)) group->send_release(request->id_at_group(), lease_id);
  end(*request, LeaseState::kReleased);
  return {};
}

Result<void> Leases::answered(Group& group, const protocol::LeaseReply& message) {
  const auto request = take_caller(group, message);
  if (message.has_error()) end_shared(group, message);
  if (!request || !request->lease_call_open) return {};
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
    request->lease_ends =
        clock_.now() + (request->shares_lease ? std::min(lease, request->lease_asked) : lease);
  }
  requests_.changed(*request);
  return {};
}

std::shared_ptr<Request> Leases::take_caller(const Group& group,
                                             const protocol::LeaseReply& message) {
  // The answer to a release, which nobody waits for.
  if (!message.has_error() && message.expires_in_ms() == 0) return nullptr;
  const auto calls = calls_.find({group.description.group_id(), message.request_id()});
  if (calls == calls_.end()) return nullptr;
  auto caller = std::move(calls->second.front());
  calls->second.pop_front();
  if (calls->second.empty()) calls_.erase(calls);
  return caller;
}

// A cache that the group does not know is gone for all who had a lease on it.
void Leases::end_shared(const Group& group, const protocol::LeaseReply& message) {
  if (checked_error(message.error()).code != Errc::kNotFound) return;
  for (const auto& record : requests_.table().known_to_groups_as(message.request_id())) {
    const bool here = record->group_id == group.description.group_id();
    if (!here || !record->shares_lease || record->lease != LeaseState::kActive) continue;
    end(*record, LeaseState::kExpired);
  }
}

Result<void> Leases::reported(Group& group, protocol::LeaseHeld message) {
  MR_RETURN_IF_ERROR(check(group, message));
  const std::string& id = message.done().request_id();
  const TimePoint ends = clock_.now() + std::chrono::milliseconds(message.expires_in_ms());
  const std::string lease_id = message.done().manifest().lease_id();
  bool same = false;
  bool active = false;
  for (const auto& record : requests_.table().known_to_groups_as(id)) {
    if (!record->result || record->group_id != group.description.group_id() ||
        record->result->manifest().lease_id() != lease_id) {
      continue;
    }
    same = true;
    if (record->lease != LeaseState::kActive && record->lease != LeaseState::kLost) continue;
    // A lease that is shared may end before the group's.
    if (record->shares_lease && record->lease_ends <= clock_.now()) continue;
    active = true;
    record->lease = LeaseState::kActive;
    record->lease_ends = record->shares_lease ? std::min(ends, record->lease_ends) : ends;
    requests_.table().reschedule(*record);
  }
  if (same) {
    // The group does not know that the lease is over.
    if (!active) group.send_release(id, lease_id);
    return {};
  }
  const auto known = requests_.table().find(id);
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
    Group* group = request->shares_lease ? groups_.find(request->group_id) : nullptr;
    if (group != nullptr && is_last(*request)) {
      group->send_release(request->id_at_group(), request->result->manifest().lease_id());
    }
    end(*request, LeaseState::kExpired);
  }
  metrics_.active_leases(requests_.table().num_leased());
}

void Leases::lose(const std::string& group_id) {
  std::erase_if(calls_, [&](const auto& calls) { return calls.first.first == group_id; });
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
  Group* group = groups_.find(request.group_id);
  if (group != nullptr && is_last(request)) group->count_room(request.num_tokens);
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
