// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/group.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace millrace::coordinator {

namespace {

// For a group that reports none; the worker's default.
constexpr std::chrono::milliseconds kDefaultLayerTimeout = std::chrono::minutes(5);
constexpr std::chrono::milliseconds kMaxLayerTimeout = std::chrono::hours(24);
// A group looks for cancellations between layers. Its longest time without looking is after the
// last layer: one timeout for the logits, two for sealing the cache and gathering the manifest.
constexpr int kLayerTimeoutsAStep = 3;

Duration layer_timeout(const protocol::Register& description) {
  const uint64_t reported_ms = description.layer_timeout_ms();
  if (reported_ms == 0) return kDefaultLayerTimeout;
  const auto longest_ms = static_cast<uint64_t>(kMaxLayerTimeout.count());
  return std::chrono::milliseconds(std::min(reported_ms, longest_ms));
}

}  // namespace

// Only ranks that hold the whole prompt know which pages a budget drops in the end.
int64_t Group::cached_for_lane(const Request& request) const {
  const auto longest = static_cast<int64_t>(description.max_side_by_side_prompt_tokens());
  const bool drops = request.options.kv_budget() > 0 && request.options.kv_budget() < 1;
  return request.num_tokens <= longest && !drops ? prefixes.tokens_of(request) : 0;
}

void Group::report_room(uint64_t free_prompt_tokens) {
  if (running || !side_by_side.empty()) return;
  constexpr uint64_t kAny = std::numeric_limits<int32_t>::max();  // longer than any prompt
  free_tokens = static_cast<int64_t>(std::min(free_prompt_tokens, kAny));
}

std::vector<std::shared_ptr<Request>> Group::requests() const {
  std::vector<std::shared_ptr<Request>> all = side_by_side;
  for (const auto& request : in_turn()) {
    if (request != nullptr) all.push_back(request);
  }
  all.insert(all.end(), suspended.begin(), suspended.end());
  return all;
}

std::shared_ptr<Request> Group::find(const std::string& request_id) const {
  for (const auto& request : requests()) {
    if (request->id_at_group() == request_id) return request;
  }
  return nullptr;
}

bool Group::replace(const std::shared_ptr<Request>& request, const std::shared_ptr<Request>& heir) {
  if (running == request) {
    running = heir;
  } else if (preempting == request) {
    preempting = heir;
  } else {
    const auto resumed = std::ranges::find(resuming, request, &Resuming::request);
    if (resumed != resuming.end()) {
      resumed->request = heir;
      return true;
    }
    for (auto* several : {&suspended, &side_by_side}) {
      const auto at = std::ranges::find(*several, request);
      if (at == several->end()) continue;
      *at = heir;
      return true;
    }
    return false;
  }
  return true;
}

std::vector<std::shared_ptr<Request>> Group::in_turn() const {
  std::vector<std::shared_ptr<Request>> turns = {preempting, running};
  for (const auto& [request, since] : resuming) turns.push_back(request);
  return turns;
}

bool Group::can_suspend(const Request& request) const {
  const bool is_next =
      running.get() == &request || std::ranges::any_of(resuming, [&request](const Resuming& one) {
        return one.request.get() == &request;
      });
  return description.suspends() && is_next && !request.cancel_sent_at &&
         (suspended.empty() || description.suspends_several());
}

std::shared_ptr<Request> Group::take(const std::string& request_id) {
  auto request = find(request_id);
  if (request == nullptr) return nullptr;
  if (running == request) running = nullptr;
  if (preempting == request) preempting = nullptr;
  std::erase(suspended, request);
  std::erase(side_by_side, request);
  std::erase_if(resuming, [&](const Resuming& one) { return one.request == request; });
  return request;
}

void Group::suspend(const std::shared_ptr<Request>& request, TimePoint now) {
  const auto resumed = std::ranges::find(resuming, request, &Resuming::request);
  if (resumed != resuming.end()) {
    request->set_aside_s += seconds(now - resumed->set_aside_since);
    resuming.erase(resumed);
  } else {
    running = std::exchange(preempting, nullptr);
  }
  request->suspended_at = now;
  request->was_suspended = true;
  suspended.push_back(request);
  protocol::Envelope envelope;
  envelope.mutable_suspend()->set_request_id(request->id_at_group());
  link->send(envelope);
  go_on(now);
}

void Group::resume(const std::shared_ptr<Request>& request, TimePoint now) {
  std::erase(suspended, request);
  resuming.push_back(
      {.request = request, .set_aside_since = *std::exchange(request->suspended_at, std::nullopt)});
  protocol::Envelope envelope;
  envelope.mutable_resume()->set_request_id(request->id_at_group());
  link->send(envelope);
  go_on(now);
}

void Group::go_on(TimePoint now) {
  const bool busy = running != nullptr || preempting != nullptr || !side_by_side.empty();
  if (busy || resuming.empty()) return;
  running = resuming.front().request;
  running->set_aside_s += seconds(now - resuming.front().set_aside_since);
  resuming.erase(resuming.begin());
}

void Group::send_release(const std::string& request_id, const std::string& lease_id) const {
  protocol::Envelope envelope;
  envelope.mutable_lease_release()->set_request_id(request_id);
  envelope.mutable_lease_release()->set_lease_id(lease_id);
  link->send(envelope);
}

Duration Group::longest_step(const Request& request) const {
  const bool beside = std::ranges::any_of(
      side_by_side, [&request](const auto& one) { return one.get() == &request; });
  const int64_t num_layers = beside ? int64_t{description.model().num_layers()} : 0;
  return (num_layers + kLayerTimeoutsAStep) * layer_timeout(description);
}

}  // namespace millrace::coordinator
