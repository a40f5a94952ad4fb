#include "coordinator/groups/group.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace millrace::coordinator {

namespace {

// Of a group that reports none; the worker's default.
constexpr std::chrono::milliseconds kDefaultLayerTimeout = std::chrono::minutes(5);
constexpr std::chrono::milliseconds kMaxLayerTimeout = std::chrono::hours(24);
// A group looks for cancellations between layers. Its longest stretch without is after the last
// layer: one timeout for the logits, two for sealing the cache and gathering the manifest.
constexpr int kLayerTimeoutsAStep = 3;

}  // namespace

void Group::report_room(uint64_t free_prompt_tokens) {
  if (running) return;
  constexpr uint64_t kAny = std::numeric_limits<int32_t>::max();  // longer than any prompt
  free_tokens = static_cast<int64_t>(std::min(free_prompt_tokens, kAny));
}

std::shared_ptr<Request> Group::find(const std::string& request_id) const {
  for (const auto& request : {running, preempting}) {
    if (request != nullptr && request->id == request_id) return request;
  }
  return nullptr;
}

std::shared_ptr<Request> Group::take(const std::string& request_id) {
  for (auto* request : {&running, &preempting}) {
    if (*request != nullptr && (*request)->id == request_id)
      return std::exchange(*request, nullptr);
  }
  return nullptr;
}

Duration Group::longest_step() const {
  const uint64_t reported_ms = description.layer_timeout_ms();
  if (reported_ms == 0) return kLayerTimeoutsAStep * kDefaultLayerTimeout;
  const auto longest_ms = static_cast<uint64_t>(kMaxLayerTimeout.count());
  return kLayerTimeoutsAStep * std::chrono::milliseconds(std::min(reported_ms, longest_ms));
}

}  // namespace millrace::coordinator
