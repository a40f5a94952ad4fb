// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/shared_prefills.h"

#include <algorithm>
#include <utility>

#include "coordinator/text/request_id.h"
#include "coordinator/text/time_forms.h"

namespace millrace::coordinator {

namespace {

// A lease that ends sooner may end before a group hears that it is shared.
constexpr std::chrono::seconds kLeastLeaseToShare{2};

bool can_be_shared(const Request& prefill, TimePoint now) {
  if (!prefill.ended()) return true;
  return prefill.lease == LeaseState::kActive && prefill.lease_ends - now > kLeastLeaseToShare;
}

Duration lease_of(const Request& request) {
  return std::chrono::milliseconds(static_cast<int64_t>(request.options.lease_ms()));
}

// How the group cut the lease that it was asked for, if it did.
Duration longest_lease(const Request& prefill) {
  const Duration granted =
      std::chrono::milliseconds(static_cast<int64_t>(prefill.result->manifest().lease_ms()));
  const bool cut = granted > Duration::zero() && granted < lease_of(prefill);
  return cut ? granted : Duration::max();
}

}  // namespace

SharedPrefills::Shared* SharedPrefills::find(const Request& request) {
  const auto found = by_key_.find(request.sharing_key);
  return found == by_key_.end() ? nullptr : &found->second;
}

const SharedPrefills::Shared* SharedPrefills::find(const Request& request) const {
  const auto found = by_key_.find(request.sharing_key);
  return found == by_key_.end() ? nullptr : &found->second;
}

bool SharedPrefills::is_sent_again(const Request& request) const {
  const auto older = requests_.table().find(request.id);
  const bool same = older && older->in_use() && older->sharing_key == request.sharing_key;
  return same && (!older->ended() || prefill_for(request) == older);
}

std::shared_ptr<Request> SharedPrefills::prefill_for(const Request& request) const {
  if (request.sharing_key.empty()) return nullptr;
  const TimePoint now = clock_.now();
  auto older = requests_.table().find(request.id);
  const bool is_done = older && older->result && older->sharing_key == request.sharing_key;
  if (is_done && can_be_shared(*older, now)) return older;
  const Shared* shared = find(request);
  return shared != nullptr && can_be_shared(*shared->prefill, now) ? shared->prefill : nullptr;
}

void SharedPrefills::join(const std::shared_ptr<Request>& request) {
  const std::shared_ptr<Request> found = prefill_for(*request);
  const auto older = requests_.table().find(request->id);
  request->role = RequestRole::kJoined;
  request->sent_as = found->id_at_group();
  request->prompt.clear();
  if (found->ended()) {
    if (found == older) leases_.pass_on(*older);
    requests_.join(request);
    answer(*request, *found);
    leases_.share(*request);
    if (found != older) returned(*request);
    return;
  }
  Shared& shared = *find(*request);
  shared.joined.push_back(request);
  shared.leavers = std::max(0, shared.leavers - 1);
  if (older && !older->ended()) {
    detach(older, Error(Errc::kCancelled, "the same prompt was sent again under this id"),
           OnDisconnect::kCancel);
  }
  requests_.join(request);
  Request& prefill = *shared.prefill;
  if (prefill.suspended_at) {
    groups_.find(prefill.group_id)->resume(shared.prefill, clock_.now());
    metrics_.resumed();
  }
  prefill.outlasts_deadline = true;
  prefill.options.set_priority(std::min(prefill.priority(), request->priority()));
  requests_.table().reschedule(prefill);
  mirror(*request, prefill);
}

void SharedPrefills::name(Request& request) {
  if (request.sharing_key.empty()) return;
  const auto known = requests_.table().known_to_groups_as(request.id);
  bool taken = std::ranges::any_of(known, [](const auto& record) { return record->in_use(); });
  for (const Group* group : groups_.all()) taken = taken || group->works_on(request.id);
  if (taken) request.sent_as = make_request_id();
}

void SharedPrefills::open(const std::shared_ptr<Request>& request) {
  if (request->sharing_key.empty()) return;
  by_key_.insert_or_assign(request->sharing_key, Shared{.prefill = request});
}

void SharedPrefills::leave(const std::shared_ptr<Request>& request, Error why) {
  if (request->lease == LeaseState::kActive) {
    hold_again(request);
  } else if (!request->ended()) {
    detach(request, std::move(why), request->on_disconnect);
  }
}

void SharedPrefills::cancel(const std::shared_ptr<Request>& request, Error why) {
  if (!request->ended()) detach(request, std::move(why), OnDisconnect::kCancel);
}

void SharedPrefills::detach(const std::shared_ptr<Request>& request, Error why,
                            OnDisconnect policy) {
  Shared* shared = find(*request);
  const bool is_prefill = shared != nullptr && shared->prefill == request;
  if (!is_prefill && (shared == nullptr || std::erase(shared->joined, request) == 0)) {
    return canceller_.cancel(request, std::move(why));
  }
  const bool others_wait = is_prefill ? !shared->joined.empty() : shared->attended();
  const bool may_return = policy != OnDisconnect::kCancel &&
                          (others_wait || may_outlive_clients(*shared->prefill, policy));
  if (!others_wait && !may_return) {
    if (!is_prefill) requests_.fail(request, why);
    return canceller_.cancel(shared->prefill, std::move(why));
  }
  if (is_prefill) hand_over(*shared);
  if (may_return) {
    why.message += "; the prefill is kept: the same prompt, sent again, gets its answer";
    ++shared->leavers;
  }
  shared->last_to_leave = request->id;
  requests_.fail(request, std::move(why));
  Request& prefill = *shared->prefill;
  if (!shared->attended()) {
    set_unattended(shared->prefill, policy);
  } else if (shared->joined.empty()) {
    prefill.outlasts_deadline = prefill.may_miss_deadline;
  }
}

bool SharedPrefills::may_outlive_clients(const Request& prefill, OnDisconnect policy) {
  const Group* group = groups_.find(prefill.group_id);
  const bool can_suspend =
      prefill.state == RequestState::kRunning && group != nullptr && group->can_suspend(prefill);
  return (policy == OnDisconnect::kFinish || can_suspend) && may_be_unattended(prefill);
}

std::shared_ptr<Request> SharedPrefills::heir_of(const Request& request) {
  auto heir = std::make_shared<Request>(request);
  heir->id = make_request_id();
  heir->sent_as = request.id_at_group();
  heir->role = RequestRole::kPrefill;
  heir->on_disconnect = OnDisconnect::kCancel;
  heir->trace.reset();  // the client's
  heir->trace_id.clear();
  return heir;
}

void SharedPrefills::hand_over(Shared& shared) {
  const std::shared_ptr<Request> request = std::exchange(shared.prefill, heir_of(*shared.prefill));
  shared.prefill->outlasts_deadline = true;
  requests_.hand_over(request, shared.prefill);
  if (Group* group = groups_.find(request->group_id)) group->replace(request, shared.prefill);
}

void SharedPrefills::set_unattended(const std::shared_ptr<Request>& prefill, OnDisconnect policy) {
  const TimePoint now = clock_.now();
  const bool suspends = policy == OnDisconnect::kSuspend;
  if (suspends) groups_.find(prefill->group_id)->suspend(prefill, now);
  const Duration longest = suspends ? settings_.suspended_prefill : settings_.unattended_prefill;
  prefill->options.set_deadline_ms(to_wire_ms(now - prefill->queued_at + longest));
  prefill->outlasts_deadline = false;
  requests_.changed(*prefill);
}

bool SharedPrefills::may_be_unattended(const Request& prefill) {
  if (settings_.max_unattended == 0 || prefill.num_tokens > settings_.max_unattended_tokens) {
    return false;
  }
  while (true) {
    int64_t count = 1;
    int64_t tokens = prefill.num_tokens;
    std::shared_ptr<Request> oldest;  // of the results that are held
    for (const auto& [key, shared] : by_key_) {
      const auto& other = shared.prefill;
      if (other.get() == &prefill || other->owner != prefill.owner || shared.attended()) continue;
      ++count;
      tokens += other->num_tokens;
      if (other->ended() && (!oldest || *other->ended_at < *oldest->ended_at)) oldest = other;
    }
    if (count <= settings_.max_unattended && tokens <= settings_.max_unattended_tokens) return true;
    if (!oldest) return false;
    release(*oldest);
  }
}

void SharedPrefills::answer(Request& joined, Request& prefill) {
  mirror(joined, prefill);
  joined.shares_lease = prefill.shares_lease = true;
  requests_.finish_joined(joined, prefill.result,
                          std::min(lease_of(joined), longest_lease(prefill)));
}

void SharedPrefills::mirror(Request& joined, const Request& prefill) {
  joined.group_id = prefill.group_id;
  joined.group_name = prefill.group_name;
  joined.num_layers = prefill.num_layers;
  joined.layer_density = prefill.layer_density;
  joined.set_aside_s = prefill.set_aside_s;
  joined.times_set_aside = prefill.times_set_aside;
  joined.opened = prefill.opened;
  joined.head_density = prefill.head_density;
  joined.started_at.reset();
  if (prefill.started_at) joined.started_at = std::max(*prefill.started_at, joined.queued_at);
  if (!prefill.ended()) joined.state = prefill.state;
}

void SharedPrefills::follow(const Request& changed) {
  Shared* shared = changed.sharing_key.empty() ? nullptr : find(changed);
  if (shared == nullptr || shared->prefill.get() != &changed) return;
  if (!changed.ended()) {
    for (const auto& joined : shared->joined) {
      mirror(*joined, changed);
      requests_.changed(*joined);
    }
    return;
  }
  if (shared->held && changed.lease == LeaseState::kActive) return;
  Shared ended = std::move(*shared);
  by_key_.erase(changed.sharing_key);
  if (!ended.held) end(std::move(ended));
}

void SharedPrefills::end(Shared shared) {
  Request& prefill = *shared.prefill;
  for (const auto& joined : shared.joined) {
    if (joined->ended()) continue;
    if (prefill.failure) {
      requests_.fail(joined, *prefill.failure);
    } else {
      answer(*joined, prefill);
    }
  }
  if (prefill.failure) return;
  const bool has_answered = !shared.joined.empty();
  if (shared.leavers > 0 && may_be_unattended(prefill)) {
    hold(shared.prefill, shared.leavers, std::move(shared.last_to_leave));
  } else if (has_answered) {
    if (prefill.role == RequestRole::kPrefill) leases_.pass_on(prefill);
    leases_.share(*shared.joined.front());
  } else if (prefill.role == RequestRole::kPrefill) {
    release(prefill);
  }
}

void SharedPrefills::hold(const std::shared_ptr<Request>& done, int leavers,
                          std::string last_to_leave) {
  std::shared_ptr<Request> holder = done;
  if (done->role != RequestRole::kPrefill) {
    holder = heir_of(*done);
    done->shares_lease = true;
  }
  holder->shares_lease = true;
  holder->lease_ends = clock_.now() + settings_.held_result;
  if (holder != done) requests_.table().insert(holder);
  requests_.table().reschedule(*holder);
  by_key_.insert_or_assign(done->sharing_key, Shared{.prefill = holder,
                                                     .leavers = leavers,
                                                     .last_to_leave = std::move(last_to_leave),
                                                     .held = true});
  leases_.share(*holder);
}

// The answer has not reached its client.
void SharedPrefills::hold_again(const std::shared_ptr<Request>& request) {
  const bool holds = request->on_disconnect != OnDisconnect::kCancel &&
                     !request->sharing_key.empty() && may_be_unattended(*request);
  if (!holds) return release(*request);
  Shared* shared = find(*request);
  if (shared != nullptr && !shared->held) return release(*request);  // it is being computed anew
  if (shared == nullptr) {
    hold(request, 1, request->id);
  } else {
    ++shared->leavers;
  }
  leases_.pass_on(*request);
}

void SharedPrefills::returned(const Request& request) {
  Shared* shared = find(request);
  if (shared == nullptr || !shared->held || --shared->leavers > 0) return;
  release(*shared->prefill);
}

void SharedPrefills::release(const Request& done) {
  (void)leases_.release(done.id, done.result->manifest().lease_id());
}

void SharedPrefills::drop(const std::function<bool(const Shared&)>& wanted, const Error& why) {
  std::vector<std::shared_ptr<Request>> prefills;
  for (const auto& [key, shared] : by_key_) {
    if (!shared.attended() && wanted(shared)) prefills.push_back(shared.prefill);
  }
  for (const auto& prefill : prefills) drop(prefill, why);
}

void SharedPrefills::drop(const std::shared_ptr<Request>& prefill, const Error& why) {
  if (prefill->ended()) {
    release(*prefill);
  } else {
    canceller_.cancel(prefill, why);
  }
}

void SharedPrefills::cancel_unattended(const std::string& id) {
  drop([&](const Shared& shared) { return shared.last_to_leave == id; },
       Error(Errc::kCancelled, "cancelled by DELETE"));
}

void SharedPrefills::cancel_all_unattended() {
  drop([](const Shared&) { return true; },
       Error(Errc::kUnavailable, "no client waits, and the coordinator is shutting down"));
}

bool SharedPrefills::is_kept_on(const std::string& group_id, const Shared& shared) {
  const Request& prefill = *shared.prefill;
  return !shared.attended() && prefill.group_id == group_id &&
         (shared.held || prefill.suspended_at);
}

// Tokens times layers that would be computed again, per second since somebody wanted them.
double SharedPrefills::worth(const Request& kept) const {
  const TimePoint since = kept.suspended_at.value_or(kept.ended_at.value_or(clock_.now()));
  const auto num_layers = static_cast<double>(kept.layer_density.size());
  return static_cast<double>(kept.num_tokens) * num_layers / (1 + seconds(clock_.now() - since));
}

bool SharedPrefills::make_room(const std::string& group_id) {
  std::shared_ptr<Request> least;
  for (const auto& [key, shared] : by_key_) {
    if (!is_kept_on(group_id, shared)) continue;
    if (!least || worth(*shared.prefill) < worth(*least)) least = shared.prefill;
  }
  if (!least) return false;
  drop(least, Error(Errc::kExhausted, "no client waits, and another prompt needs the room"));
  return true;
}

void SharedPrefills::give_up_on(const std::string& group_id) {
  drop([&](const Shared& shared) { return is_kept_on(group_id, shared); },
       Error(Errc::kExhausted, "no client waits, and its group is to stop"));
}

void SharedPrefills::count() const {
  int64_t unattended = 0;
  int64_t suspended = 0;
  int64_t held = 0;
  for (const auto& [key, shared] : by_key_) {
    if (shared.held) {
      ++held;
    } else if (shared.prefill->suspended_at) {
      ++suspended;
    } else if (!shared.attended()) {
      ++unattended;
    }
  }
  metrics_.unattended(unattended, suspended, held);
}

}  // namespace millrace::coordinator
