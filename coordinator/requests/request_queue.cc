// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request_queue.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::coordinator {

Result<void> RequestQueue::push(std::shared_ptr<Request> request) {
  if (size() >= max_requests_) {
    return error(Errc::kExhausted, "the queue is full: {} requests are waiting, limit {}", size(),
                 max_requests_);
  }
  const auto bytes = static_cast<int64_t>(request->prompt.size());
  if (bytes_ + bytes > max_bytes_) {
    return error(Errc::kExhausted,
                 "the queue is full: {} of prompts are waiting, this one has {}, limit {}",
                 format_bytes(bytes_), format_bytes(bytes), format_bytes(max_bytes_));
  }
  bytes_ += bytes;
  waiting_.push_back(std::move(request));
  return {};
}

void RequestQueue::push_front(std::shared_ptr<Request> request) {
  bytes_ += static_cast<int64_t>(request->prompt.size());
  waiting_.push_front(std::move(request));
}

bool RequestQueue::replace(const Request& request, const std::shared_ptr<Request>& heir) {
  const auto found = std::ranges::find(waiting_, &request, &std::shared_ptr<Request>::get);
  if (found == waiting_.end()) return false;
  *found = heir;
  return true;
}

bool RequestQueue::remove(const Request& request) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const auto& waiting) { return waiting.get() == &request; });
  if (found == waiting_.end()) return false;
  bytes_ -= static_cast<int64_t>(request.prompt.size());
  waiting_.erase(found);
  return true;
}

// A request that was given back is at the front, and may be younger than those behind it.
std::optional<TimePoint> RequestQueue::oldest() const {
  const auto first = std::ranges::min_element(
      waiting_, {}, [](const auto& request) { return request->queued_at; });
  if (first == waiting_.end()) return std::nullopt;
  return (*first)->queued_at;
}

}  // namespace millrace::coordinator
