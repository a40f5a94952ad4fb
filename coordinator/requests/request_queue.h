// SPDX-License-Identifier: Apache-2.0
// Requests that wait for a group, in arrival order over all models, bounded in number and in bytes.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/requests/request.h"

namespace millrace::coordinator {

class RequestQueue {
 public:
  RequestQueue(int64_t max_requests, int64_t max_bytes)
      : max_requests_(max_requests), max_bytes_(max_bytes) {}

  // kExhausted when full.
  Result<void> push(std::shared_ptr<Request> request);
  // For a request that a group gave back. Not bounded: it was in the queue before.
  void push_front(std::shared_ptr<Request> request);
  // `heir` has the same prompt, and takes the place of `request`. False if that is not there.
  bool replace(const Request& request, const std::shared_ptr<Request>& heir);
  // True if it was there.
  bool remove(const Request& request);

  // When the request that has waited longest was queued; nullopt if none waits.
  std::optional<TimePoint> oldest() const;

  int64_t size() const { return static_cast<int64_t>(waiting_.size()); }
  const std::deque<std::shared_ptr<Request>>& waiting() const { return waiting_; }

 private:
  int64_t max_requests_;
  int64_t max_bytes_;
  int64_t bytes_ = 0;
  std::deque<std::shared_ptr<Request>> waiting_;
};

}  // namespace millrace::coordinator
