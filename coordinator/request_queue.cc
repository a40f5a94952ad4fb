#include "coordinator/request_queue.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::coordinator {

Result<void> RequestQueue::push(std::shared_ptr<Request> request) {
  if (size() >= max_requests_) {
    return error(Errc::kExhausted, "the queue is full: {} requests wait, limit {}", size(),
                 max_requests_);
  }
  const auto bytes = static_cast<int64_t>(request->prompt.size());
  if (bytes_ + bytes > max_bytes_) {
    return error(Errc::kExhausted,
                 "the queue is full: {} of prompts wait, this one has {}, limit {}",
                 format_bytes(bytes_), format_bytes(bytes), format_bytes(max_bytes_));
  }
  bytes_ += bytes;
  waiting_.push_back(std::move(request));
  return {};
}

std::shared_ptr<Request> RequestQueue::take(
    const std::deque<std::shared_ptr<Request>>::iterator& at) {
  auto request = std::move(*at);
  waiting_.erase(at);
  bytes_ -= static_cast<int64_t>(request->prompt.size());
  return request;
}

std::shared_ptr<Request> RequestQueue::pop(const std::string& model, int64_t max_tokens) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& request) {
    return request->model == model && request->num_tokens <= max_tokens;
  });
  return found == waiting_.end() ? nullptr : take(found);
}

bool RequestQueue::remove(const Request& request) {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const auto& waiting) { return waiting.get() == &request; });
  if (found == waiting_.end()) return false;
  take(found);
  return true;
}

}  // namespace millrace::coordinator
