// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/dispatcher.h"

#include <algorithm>

#include "coordinator/groups/group_choice.h"
#include "coordinator/groups/room_forecast.h"
#include "coordinator/order/preemption.h"
#include "coordinator/order/prefix_choice.h"
#include "coordinator/order/side_by_side.h"
#include "coordinator/order/soonest_end.h"
#include "coordinator/text/limits.h"
#include "coordinator/text/time_forms.h"

namespace millrace::coordinator {

namespace {

// A request that this many groups fail, by what looks like their own fault, is at fault itself.
constexpr size_t kMaxFailures = 2;
// So is one before whose start so many groups are lost.
constexpr int kMaxLostBeforeStart = 2;
// More time than this between two ticks: this process did not run. For as long afterwards it may send
// to groups of which it does not know yet that they have left meanwhile.
constexpr std::chrono::seconds kPause{2};
// A request that no group has room for waits so long for a lease to be released, and for one that
// is known to end within that time: decode nodes release theirs all the time.
constexpr std::chrono::seconds kRoomPatience{1};

bool is_at_fault(const Request& request) {
  return request.failed_on.size() >= kMaxFailures;
}

// A prefill that may be shared may gain a client with a later deadline. The group is told the latest
// that any may have, and is cancelled when all have passed.
uint64_t deadline_for_group_ms(const Request& request, TimePoint now) {
  if (!request.sharing_key.empty()) return uint64_t{kMaxDurationMs};
  const Duration left = request.queued_at + request.deadline_after() - now;
  return std::max<uint64_t>(1, to_wire_ms(left));  // 0 would be none
}

}  // namespace

bool Dispatcher::any_idle() const {
  const auto all = groups_.all();
  return std::any_of(all.begin(), all.end(), [](const Group* group) { return group->idle(); });
}

void Dispatcher::note_time() {
  const TimePoint now = clock_.now();
  if (now - last_noted_ > kPause) knows_groups_from_ = now + kPause;
  last_noted_ = now;
}

void Dispatcher::dispatch() {
  note_time();
  give_up_on_untakable();
  while (any_idle() && start_next()) {
  }
  while (preempt_next()) {
  }
}

bool Dispatcher::start_next() {
  const auto all = groups_.all();
  // The number of waiting requests without the one being looked at.
  PrefixChoice choice(all, std::max<int64_t>(0, requests_.queue().size() - 1), turns_.forecast(),
                      clock_.now(), group_order_);
  const auto in_turn = turns_.arrange(requests_.queue().waiting(), all, clock_.now());
  for (const auto& request : in_turn) {
    Group* group = choice.choose(*request);
    if (group == nullptr || expired(request)) continue;
    start(*group, group->running, request, in_turn);
    return true;
  }
  return false;
}

bool Dispatcher::preempt_next() {
  const auto all = groups_.all();
  if (std::none_of(all.begin(), all.end(), is_preemptible)) return false;
  const TimePoint now = clock_.now();
  const auto in_turn = turns_.arrange(requests_.queue().waiting(), all, now);
  for (const auto& request : in_turn) {
    Group* group = choose_group_to_preempt(all, *request, turns_.forecast(), now);
    if (group == nullptr || expired(request)) continue;
    start(*group, group->preempting, request, in_turn);
    return true;
  }
  return false;
}

// Collects first, because giving up changes the queue.
void Dispatcher::give_up_on_untakable() {
  const auto all = groups_.all();
  std::vector<std::shared_ptr<Request>> untakable;
  for (const auto& request : requests_.queue().waiting()) {
    if (request->given_back && !may_be_taken(*request, all)) untakable.push_back(request);
  }
  for (const auto& request : untakable) give_up(request);
}

bool Dispatcher::may_be_taken(const Request& request, std::span<Group* const> all) const {
  if (has_untried_group(all, request)) return true;
  if (!request.no_room_since || !has_group_to_ask_again(all, request)) return false;
  const TimePoint patient_until = clock_.now() + kRoomPatience;
  if (*request.no_room_since + kRoomPatience > clock_.now()) return true;
  const auto room = next_room(request, all, requests_.table().all(), clock_.now());
  return room && *room <= patient_until;
}

bool Dispatcher::expired(const std::shared_ptr<Request>& request) {
  const auto all = groups_.all();
  const auto least = least_prefill(*request, all, requests_.queue().waiting(), turns_);
  const Duration left = request->must_end_by() - clock_.now();
  if (!least || least->prefill <= left) return false;
  requests_.fail(request,
                 error(Errc::kDeadlineExceeded,
                       "deadline of {:.3f} s: {:.3f} s are left when a group is free, and {} "
                       "tokens{} take {:.3f} s or more",
                       seconds(request->deadline_after()), seconds(left), request->num_tokens,
                       cached_text(least->cached_tokens), seconds(least->prefill)));
  return true;
}

void Dispatcher::start(Group& group, std::shared_ptr<Request>& place,
                       const std::shared_ptr<Request>& request,
                       const TurnOrder::Requests& in_turn) {
  const auto together =
      choose_side_by_side(groups_.all(), group, request, in_turn, turns_.forecast(), clock_.now());
  if (group.running != nullptr) ++group.running->times_set_aside;
  protocol::Envelope envelope;
  if (together.empty()) {
    request->num_side_by_side = 1;
    *envelope.mutable_prefill_request() = assign(group, request);
    place = request;
  } else {
    for (const auto& one : together) {
      one->num_side_by_side = static_cast<int>(together.size());
      *envelope.mutable_prefills_side_by_side()->add_requests() = assign(group, one);
    }
    group.side_by_side = together;
  }
  // Requests that let an idle group pass for their prefix have cost nobody anything: it has another
  // prompt now.
  for (const auto& other : requests_.queue().waiting()) {
    if (other->waits_for_prefix_since) other->waits_for_prefix_since = clock_.now();
  }
  group.link->send(envelope);
}

protocol::PrefillRequest Dispatcher::assign(Group& group, const std::shared_ptr<Request>& request) {
  protocol::PrefillRequest message;
  message.set_request_id(request->id_at_group());
  message.set_owner(request->owner);
  message.set_trace_id(request->trace_id);
  message.set_prompt_token_ids(request->prompt);
  *message.mutable_options() = request->options;
  message.mutable_options()->set_deadline_ms(deadline_for_group_ms(*request, clock_.now()));
  requests_.assign(request);
  turns_.started(group, *request, clock_.now());
  message.set_foreseen_tokens(static_cast<uint64_t>(request->foreseen_tokens));
  request->group_id = group.description.group_id();
  request->group_name = group.description.group_name();
  request->num_layers = group.description.model().num_layers();
  group.count_room(-request->num_tokens);
  request->cancel_sent_at.reset();
  request->between_layers = group.running != nullptr;
  return message;
}

void Dispatcher::take_back(const std::shared_ptr<Request>& request, Error why) {
  if (why.code == Errc::kExhausted && !request->no_room_since) {
    request->no_room_since = clock_.now();
  }
  request->given_back = std::move(why);
  if (is_at_fault(*request) || !may_be_taken(*request, groups_.all())) {
    give_up(request);
  } else {
    requests_.requeue(request, request->given_back->code);
  }
}

void Dispatcher::lost(Group& group, const std::string& why) {
  note_time();
  const protocol::Register& who = group.description;
  const Error lost =
      error(Errc::kPeerLost, "group '{}' (id {}) is lost: {}; send the request again",
            who.group_name(), who.group_id(), why);
  for (const auto& request : group.requests()) {
    group.take(request->id_at_group());
    turns_.stopped(group, *request, clock_.now(), /*whole=*/false);
    if (request->ended()) continue;
    // The group had left before this was sent: it waits as if it had not been, for this group to
    // return or for another.
    const bool begun = request->started_at || request->opened;
    if (!begun && clock_.now() < knows_groups_from_ &&
        ++request->lost_before_start < kMaxLostBeforeStart) {
      requests_.requeue(request, lost.code);
      continue;
    }
    request->failed_on.insert(who.group_id());
    if (request->opened || request->suspended_at) {
      requests_.fail(request, lost);
    } else {
      take_back(request, lost);
    }
  }
}

void Dispatcher::give_up(const std::shared_ptr<Request>& request) {
  if (is_at_fault(*request)) {
    for (const auto& id : request->failed_on) {
      if (Group* group = groups_.find(id)) group->health.clear();
    }
  }
  Refusal why(*request->given_back);
  if (why.error.code == Errc::kExhausted) {
    why.retry_after_s =
        seconds_until_room(*request, groups_.all(), requests_.table().all(), clock_.now());
  }
  requests_.fail(request, std::move(why));
}

}  // namespace millrace::coordinator
