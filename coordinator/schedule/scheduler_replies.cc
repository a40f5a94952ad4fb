// What groups say about their requests, and leases.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/errc_wire.h"
#include "common/log.h"
#include "coordinator/schedule/cut_text.h"
#include "coordinator/schedule/scheduler.h"
#include "coordinator/text/request_id.h"

namespace millrace::coordinator {

namespace {

bool works_on(const Group& group, const std::string& request_id) {
  return group.running != nullptr && group.running->id == request_id;
}

// As long as a client may ask for. What a group makes up could be more than a Duration holds.
constexpr uint64_t kMaxLeaseMs = 24 * 3600 * 1000;
// A request that so many groups fail by a fault of theirs is at fault itself.
constexpr size_t kMaxFailures = 2;
// Phases and stages of a prefill; there are twelve.
constexpr int kMaxTimes = 64;
// What a group's store holds at most.
constexpr int64_t kMaxLeasesTold = 65536;
// A longer wait is looked at again: leases are released before they end.
constexpr std::chrono::hours kLongestRetry{1};
// Where a group has no room and no lease, as with pages that are being read.
constexpr std::chrono::seconds kUnknownRetry{5};

Result<Duration> lease_from_wire(const Group& group, const Request& request, uint64_t lease_ms) {
  if (lease_ms <= kMaxLeaseMs) return Duration(std::chrono::milliseconds(lease_ms));
  return error(Errc::kInvalidArgument, "group '{}' gives request '{}' a lease of {} ms, limit {}",
               group.description.group_name(), request.id, lease_ms, kMaxLeaseMs);
}

Error from_wire(const protocol::ErrorInfo& info) {
  return Error(errc_from_wire(info.code()), cut_text(info.message()));
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

void Scheduler::on_heartbeat(Group& group, const protocol::Heartbeat& message) {
  probes_.heartbeat(group.description.group_name(), message);
  // While it works on a prompt, the figure is from before.
  if (!message.has_room() || group.running) return;
  constexpr uint64_t kAny = std::numeric_limits<int32_t>::max();  // longer than any prompt
  group.free_tokens = static_cast<int64_t>(std::min(message.room().free_prompt_tokens(), kAny));
}

void Scheduler::on_prefill_opened(Group& group, protocol::PrefillOpened message) {
  if (!works_on(group, message.request_id())) return;
  on_progress(group, message.request_id());
  Request& request = *group.running;
  const bool wanted = request.handover == protocol::HANDOVER_STREAMING;
  if (request.ended() || request.opened || !wanted) return;
  request.opened =
      std::make_shared<const protocol::Manifest>(std::move(*message.mutable_manifest()));
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

Result<void> Scheduler::on_prefill_done(Group& group, protocol::PrefillDone message) {
  if (!works_on(group, message.request_id())) return {};
  if (message.phases_size() > kMaxTimes || message.stages_size() > kMaxTimes) {
    return error(Errc::kInvalidArgument, "group '{}' sent {} phases and {} stages, limit {}",
                 group.description.group_name(), message.phases_size(), message.stages_size(),
                 kMaxTimes);
  }
  MR_ASSIGN_OR_RETURN(const Duration lease,
                      lease_from_wire(group, *group.running, message.manifest().lease_ms()));
  on_progress(group, message.request_id());
  const std::shared_ptr<Request> request = std::exchange(group.running, nullptr);
  group.cancelled_at.reset();
  group.health.served();
  request->prompt.clear();
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
    request->result = std::make_shared<const protocol::PrefillDone>(std::move(message));
    mean_prefill_s_ += 0.2 * (seconds(*request->ended_at - *request->started_at) - mean_prefill_s_);
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
  group.count_room(request->num_tokens);
  Error why = from_wire(message.error());
  const std::string& id = group.description.group_id();
  // What the client has been told of one group's cache, another cannot make true.
  const bool may_move = !request->ended() && !request->opened;
  const bool at_fault = GroupHealth::blames_group(why.code);
  if (at_fault) {
    group.health.failed(clock_.now());
    request->failed_on.insert(id);
    spdlog::warn("group '{}' rests for {:.0f} s, it failed request {}: {}",
                 group.description.group_name(), seconds(group.health.rest()), request->id,
                 why.message);
  }
  if (why.code == Errc::kExhausted) {
    ++request->refusals[id];
    if (group.has_room(request->num_tokens)) {
      group.free_tokens = group.free_tokens ? request->num_tokens - 1 : 0;
    }
  }
  if (may_move && (at_fault || why.code == Errc::kExhausted)) {
    give_back(request, std::move(why));
  } else {
    fail(request, std::move(why));
  }
  dispatch();
}

// To the front of the queue: for another group, or to end there if no other will do.
void Scheduler::give_back(std::shared_ptr<Request> request, Error why) {
  request->given_back = std::move(why);
  if (request->failed_on.size() >= kMaxFailures || hopeless(*request)) {
    return end_hopeless(request);
  }
  probes_.given_back(request->given_back->code);
  --running_;
  request->state = RequestState::kQueued;
  request->started_at.reset();
  request->layer_density.clear();
  request->group_id.clear();
  request->group_name.clear();
  queue_.push_front(request);
  changed(*request);
}

void Scheduler::end_hopeless(const std::shared_ptr<Request>& request) {
  if (request->failed_on.size() >= kMaxFailures) {
    for (const auto& id : request->failed_on) {
      if (Group* group = groups_.find(id)) group->health.pardon();
    }
  }
  if (request->given_back->code == Errc::kExhausted) {
    request->retry_after_s = retry_after_s(*request);
  }
  fail(request, *request->given_back);
}

// Until the leases that end first have made room on one of the groups.
int Scheduler::retry_after_s(const Request& request) {
  std::map<std::string, std::vector<const Request*>> holders;
  const auto all = table_.all();
  for (const auto& record : all) {
    if (record->lease == LeaseState::kActive) holders[record->group_id].push_back(record.get());
  }
  std::optional<TimePoint> soonest;
  for (const Group* group : groups_.all()) {
    auto& held = holders[group->description.group_id()];
    if (held.empty() || !group->takes(request.model, request.num_tokens)) continue;
    std::sort(held.begin(), held.end(),
              [](const auto* a, const auto* b) { return a->lease_ends < b->lease_ends; });
    // At the latest when all have ended, whatever was reported.
    TimePoint has_room = held.back()->lease_ends;
    int64_t free_tokens = std::max<int64_t>(0, group->free_tokens.value_or(0));
    for (const Request* record : held) {
      free_tokens += record->num_tokens;
      if (free_tokens < request.num_tokens) continue;
      has_room = record->lease_ends;
      break;
    }
    soonest = std::min(soonest.value_or(has_room), has_room);
  }
  const Duration wait = soonest ? *soonest - clock_.now() : Duration(kUnknownRetry);
  return static_cast<int>(std::ceil(std::clamp(seconds(wait), 1.0, seconds(kLongestRetry))));
}

// Until a group has taken the next one, if prompts go on as they did.
int Scheduler::retry_after_full_queue_s() const {
  const double turn_s = mean_prefill_s_ / std::max(1, groups_.size());
  return static_cast<int>(std::ceil(std::clamp(turn_s, 1.0, 60.0)));
}

// Of a group that served requests before this process was started.
Result<void> Scheduler::on_lease_held(Group& group, protocol::LeaseHeld message) {
  const protocol::Manifest& manifest = message.done().manifest();
  const std::string id = message.done().request_id();
  if (!check_request_id(id).ok() || manifest.model() != group.description.model().name() ||
      message.expires_in_ms() > kMaxLeaseMs || ++group.leases_told > kMaxLeasesTold ||
      message.done().phases_size() > kMaxTimes || message.done().stages_size() > kMaxTimes) {
    return error(Errc::kInvalidArgument, "group '{}' tells of a lease that makes no sense",
                 group.description.group_name());
  }
  const TimePoint ends = clock_.now() + std::chrono::milliseconds(message.expires_in_ms());
  const auto known = table_.find(id);
  const bool same = known && known->result && known->group_id == group.description.group_id() &&
                    known->result->manifest().lease_id() == manifest.lease_id();
  if (same) {
    if (known->lease != LeaseState::kActive && known->lease != LeaseState::kLost) return {};
    known->lease = LeaseState::kActive;
    known->lease_ends = ends;
    table_.reschedule(*known);
    return {};
  }
  auto request = std::make_shared<Request>();
  request->id = id;
  request->model = manifest.model();
  request->num_tokens = static_cast<int64_t>(manifest.num_tokens());
  request->group_id = group.description.group_id();
  request->group_name = group.description.group_name();
  request->num_layers = group.description.model().num_layers();
  request->state = RequestState::kDone;
  double prefill_s = 0;
  for (const auto& stage : message.done().stages()) prefill_s += stage.seconds();
  // When it waited and ran is not known any more, only for how long it ran.
  request->ended_at = request->kept_since = clock_.now();
  const bool plausible = prefill_s >= 0 && prefill_s < 24 * 3600;
  request->started_at = request->queued_at =
      clock_.now() - std::chrono::duration_cast<Duration>(
                         std::chrono::duration<double>(plausible ? prefill_s : 0));
  request->lease = LeaseState::kActive;
  request->lease_ends = ends;
  request->result =
      std::make_shared<const protocol::PrefillDone>(std::move(*message.mutable_done()));
  if (!table_.insert(request)) {
    spdlog::warn("group '{}' holds a lease of request {}, whose id is in use by now",
                 group.description.group_name(), id);
  }
  return {};
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
  if (Group* group = groups_.find(request.group_id)) group->count_room(request.num_tokens);
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
