// SPDX-License-Identifier: Apache-2.0
// The last batches of KV cache events, by sequence number, for subscribers that missed some.
// Bounded in number and bytes: the oldest are dropped first. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace millrace::worker {

struct EventBatch {
  uint64_t sequence = 0;
  // Shared with messages that are being sent.
  std::shared_ptr<const std::vector<std::byte>> payload;
};

class BatchBuffer {
 public:
  BatchBuffer(int64_t max_batches, int64_t max_bytes)
      : max_batches_(max_batches), max_bytes_(max_bytes) {}

  // Numbers count from 0. Returns the batch; a batch larger than the buffer is not kept.
  EventBatch add(std::shared_ptr<const std::vector<std::byte>> payload);
  EventBatch add(std::vector<std::byte> payload) {
    return add(std::make_shared<const std::vector<std::byte>>(std::move(payload)));
  }
  // The kept batches with this number or a later one, ascending.
  std::vector<EventBatch> since(uint64_t sequence) const;

 private:
  const int64_t max_batches_;
  const int64_t max_bytes_;
  std::deque<EventBatch> batches_;
  int64_t num_bytes_ = 0;
  uint64_t next_ = 0;
};

}  // namespace millrace::worker
