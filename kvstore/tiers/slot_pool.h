// SPDX-License-Identifier: Apache-2.0
// Which slots of one tier are free. One pool serves all layers, heads and requests: a slot has no
// history. Not thread-safe; only grow() allocates memory.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::kvstore {

inline constexpr int32_t kNoSlot = -1;

class SlotPool {
 public:
  // Adds slots [size(), size() + num_slots).
  void grow(int64_t num_slots);
  // Forgets all slots; none may be in use.
  void clear();

  // kNoSlot if none is free. The slot given back last is taken first: it is the warmest in cache.
  int32_t take();
  void give(int32_t slot);

  int64_t size() const { return size_; }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return size_ - free(); }

 private:
  int64_t size_ = 0;
  std::vector<int32_t> free_;  // a stack
};

}  // namespace millrace::kvstore
