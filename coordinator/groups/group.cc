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
  for (const auto& request : {preempting, running, suspended}) {
    if (request != nullptr) all.push_back(request);
  }
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
  } else if (suspended == request) {
    suspended = heir;
  } else {
    const auto at = std::ranges::find(side_by_side, request);
    if (at == side_by_side.end()) return false;
    *at = heir;
  }
  return true;
}

std::shared_ptr<Request> Group::take(const std::string& request_id) {
  auto request = find(request_id);
  if (request == nullptr) return nullptr;
  if (running == request) running = nullptr;
  if (preempting == request) preempting = nullptr;
  if (suspended == request) suspended = nullptr;
  std::erase(side_by_side, request);
  return request;
}

void Group::suspend(TimePoint now) {
  running->suspended_at = now;
  running->was_suspended = true;
  protocol::Envelope envelope;
  envelope.mutable_suspend()->set_request_id(running->id_at_group());
  suspended = std::exchange(running, std::exchange(preempting, nullptr));
  link->send(envelope);
}

void Group::resume(TimePoint now) {
  const TimePoint since = *std::exchange(suspended->suspended_at, std::nullopt);
  // What runs now counts when it has ended.
  const TimePoint until = running == nullptr ? now : std::max(since, running->dispatched_at);
  suspended->set_aside_s += seconds(until - since);
  protocol::Envelope envelope;
  envelope.mutable_resume()->set_request_id(suspended->id_at_group());
  preempting = std::exchange(running, std::exchange(suspended, nullptr));
  link->send(envelope);
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
