#include "worker/events/batch_buffer.h"

#include <algorithm>
#include <utility>

namespace millrace::worker {

void BatchBuffer::add(std::vector<std::byte> payload) {
  num_bytes_ += std::ssize(payload);
  batches_.push_back(
      {.sequence = next_++,
       .payload = std::make_shared<const std::vector<std::byte>>(std::move(payload))});
  while (!batches_.empty() && (std::ssize(batches_) > max_batches_ || num_bytes_ > max_bytes_)) {
    num_bytes_ -= std::ssize(*batches_.front().payload);
    batches_.pop_front();
  }
}

std::vector<EventBatch> BatchBuffer::since(uint64_t sequence) const {
  const auto first = std::ranges::lower_bound(batches_, sequence, {}, &EventBatch::sequence);
  return {first, batches_.end()};
}

}  // namespace millrace::worker
