// SPDX-License-Identifier: Apache-2.0
#include "kvstore/tiers/slot_pool.h"

#include <limits>

#include "common/check.h"

namespace millrace::kvstore {

void SlotPool::grow(int64_t num_slots) {
  const int64_t new_size = size_ + num_slots;
  MR_CHECK(num_slots >= 0 && new_size <= std::numeric_limits<int32_t>::max(), "{} + {} slots",
           size_, num_slots);
  free_.reserve(static_cast<size_t>(new_size));
  for (int64_t slot = new_size - 1; slot >= size_; --slot) {
    free_.push_back(static_cast<int32_t>(slot));
  }
  size_ = new_size;
}

void SlotPool::clear() {
  MR_CHECK(used() == 0, "{} of {} slots are in use", used(), size_);
  free_.clear();
  free_.shrink_to_fit();
  size_ = 0;
}

int32_t SlotPool::take() {
  if (free_.empty()) return kNoSlot;
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void SlotPool::give(int32_t slot) {
  MR_CHECK(slot >= 0 && slot < size_ && free() < size_, "slot {} given to a pool of {}, {} free",
           slot, size_, free());
  free_.push_back(slot);
}

}  // namespace millrace::kvstore
