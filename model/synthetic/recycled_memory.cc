// SPDX-License-Identifier: Apache-2.0
#include "model/synthetic/recycled_memory.h"

namespace millrace::model {

std::shared_ptr<AlignedBuffer> RecycledMemory::take(int64_t bytes) {
  std::shared_ptr<AlignedBuffer>* best = nullptr;
  for (auto& buffer : buffers_) {
    const bool fits = buffer.use_count() == 1 && buffer->bytes() >= bytes;
    if (fits && (best == nullptr || buffer->bytes() < (*best)->bytes())) best = &buffer;
  }
  if (best != nullptr) return *best;
  buffers_.push_back(std::make_shared<AlignedBuffer>(bytes));
  return buffers_.back();
}

}  // namespace millrace::model
