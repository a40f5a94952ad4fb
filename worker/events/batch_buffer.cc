// SPDX-License-Identifier: Apache-2.0
#include "worker/events/batch_buffer.h"

#include <algorithm>
#include <utility>

namespace millrace::worker {

EventBatch BatchBuffer::add(std::shared_ptr<const std::vector<std::byte>> payload) {
  EventBatch batch{.sequence = next_++, .payload = std::move(payload)};
  num_bytes_ += std::ssize(*batch.payload);
  batches_.push_back(batch);
  while (!batches_.empty() && (std::ssize(batches_) > max_batches_ || num_bytes_ > max_bytes_)) {
    num_bytes_ -= std::ssize(*batches_.front().payload);
    batches_.pop_front();
  }
  return batch;
}

std::vector<EventBatch> BatchBuffer::since(uint64_t sequence) const {
  const auto first = std::ranges::lower_bound(batches_, sequence, {}, &EventBatch::sequence);
  return {first, batches_.end()};
}

}  // namespace millrace::worker
