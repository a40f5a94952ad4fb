// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/prefill_replies.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/log.h"
#include "coordinator/schedule/reply_checks.h"

namespace millrace::coordinator {

void PrefillReplies::started(Group& group, const std::string& request_id) {
  if (const auto request = group.find(request_id)) requests_.begin(*request);
}

void PrefillReplies::opened(Group& group, protocol::PrefillOpened message) {
  const auto request = group.find(message.request_id());
  if (!request) return;
  requests_.begin(*request);
  const bool wanted = request->options.handover() == protocol::HANDOVER_STREAMING;
  if (request->ended() || request->opened || !wanted) return;
  request->opened =
      std::make_shared<const protocol::Manifest>(std::move(*message.mutable_manifest()));
  requests_.changed(*request);
}

void PrefillReplies::layer_done(Group& group, const protocol::LayerDone& message) {
  const auto request = group.find(message.request_id());
  if (!request) return;
  requests_.begin(*request);
  if (request->ended()) return requests_.wasted_layer(*request);
  if (request->layer_density.size() >= request->num_layers) return;
  request->layer_density.push_back(message.density());
  requests_.changed(*request);
}

Result<void> PrefillReplies::done(Group& group, protocol::PrefillDone message) {
  if (!group.works_on(message.request_id())) {
    release_unasked(group, message);
    return {};
  }
  MR_RETURN_IF_ERROR(check_times(group, message));
  MR_ASSIGN_OR_RETURN(const Duration lease,
                      checked_lease(group, message.request_id(), message.manifest().lease_ms()));
  const std::shared_ptr<Request> request = group.take(message.request_id());
  requests_.begin(*request);
  turns_.stopped(group, *request, clock_.now(), /*whole=*/!request->was_suspended,
                 std::min(static_cast<int64_t>(message.cached_tokens()), request->num_tokens),
                 groups_own_seconds(*request, message));
  group.go_on(clock_.now());
  // Prompts side by side are all its first.
  if (group.side_by_side.empty()) group.cold = false;
  group.health.served();
  if (request->ended()) {
    // The cancellation reached the group too late; nobody will fetch the pages.
    group.send_release(request->id_at_group(), message.manifest().lease_id());
  } else {
    pace_.finished(clock_.now() - *request->started_at);
    requests_.finish(*request, std::move(message), lease);
  }
  dispatcher_.dispatch();
  return {};
}

// The message was sent while the coordinator was gone or had given the group up; the request has
// failed or runs elsewhere.
void PrefillReplies::release_unasked(Group& group, const protocol::PrefillDone& message) {
  const std::string& lease_id = message.manifest().lease_id();
  const auto known = requests_.table().known_to_groups_as(message.request_id());
  const bool is_known = std::ranges::any_of(known, [&](const auto& request) {
    return request->result && request->result->manifest().lease_id() == lease_id;
  });
  if (!is_known) group.send_release(message.request_id(), lease_id);
}

void PrefillReplies::failed(Group& group, const protocol::PrefillFailed& message, bool made_room) {
  const std::shared_ptr<Request> request = group.take(message.request_id());
  if (!request) return;
  const bool in_lane = request->num_side_by_side > 1;
  const bool preempted = group.running != nullptr;
  const bool beside_unattended =
      !preempted && (made_room || !group.suspended.empty() || !group.resuming.empty());
  turns_.stopped(group, *request, clock_.now(), /*whole=*/false);
  group.go_on(clock_.now());
  Error why = checked_error(message.error());
  group.count_room(request->num_tokens);
  // Room that another place may have says nothing about the group.
  const bool had_no_room =
      why.code == Errc::kExhausted && (in_lane || beside_unattended || preempted);
  if (!had_no_room) {
    note_failure(group, *request, why);
  } else if (in_lane) {
    request->runs_in_lanes = false;  // on all ranks there may be room
  } else if (!beside_unattended) {
    request->preempts = false;  // alone there may be room
  }                             // else the prompts that nobody waits for make room
  // The client has been told about this group's cache, which another group cannot provide.
  const bool may_move = !request->ended() && !request->opened && !request->suspended_at;
  const bool another_may_serve =
      GroupHealth::blames_group(why.code) || why.code == Errc::kExhausted;
  if (may_move && another_may_serve) {
    dispatcher_.take_back(request, std::move(why));
  } else {
    requests_.fail(request, std::move(why));
  }
  dispatcher_.dispatch();
}

// Remembers what the failure says about the group, for this request and for others.
void PrefillReplies::note_failure(Group& group, Request& request, const Error& why) {
  const std::string& id = group.description.group_id();
  if (GroupHealth::blames_group(why.code)) {
    group.health.failed(clock_.now());
    request.failed_on.insert(id);
    log::warn("group '{}' failed request {} and rests for {:.0f} s: {}",
              group.description.group_name(), request.id, seconds(group.health.rest()),
              why.message);
  }
  if (why.code == Errc::kExhausted) {
    ++request.refusals[id];
    if (group.has_room(request.num_tokens)) {
      group.free_tokens = group.free_tokens ? request.num_tokens - 1 : 0;
    }
  }
}

// nullopt if the group does not say, or says something that is not a time; also for a prompt that
// ran on all ranks after all, because those that it was to run side by side with were cancelled.
std::optional<double> PrefillReplies::groups_own_seconds(const Request& request,
                                                         const protocol::PrefillDone& message) {
  if (request.num_side_by_side > 1 && !ran_in_lane(message)) return std::nullopt;
  double sum_s = 0;
  for (const auto& stage : message.stages()) sum_s += stage.seconds();
  return std::isfinite(sum_s) && sum_s > 0 ? std::optional<double>(sum_s) : std::nullopt;
}

}  // namespace millrace::coordinator
