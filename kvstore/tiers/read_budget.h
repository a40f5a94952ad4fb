// SPDX-License-Identifier: Apache-2.0
// Host memory for pages that are read for a reader, from disk or from a device with memory of its
// own. It is taken per read and held until the pages are unpinned, which a slow reader may delay.
#pragma once

#include <cstdint>
#include <mutex>

#include "common/result.h"
#include "common/system/fresh_memory.h"

namespace millrace::kvstore {

class ReadBudget;

// Memory that counts against a budget. The budget outlives it.
class ReadMemory {
 public:
  ReadMemory() = default;
  ReadMemory(ReadMemory&& other) noexcept { *this = std::move(other); }
  ReadMemory& operator=(ReadMemory&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~ReadMemory();

  std::byte* data() { return memory_.data(); }

 private:
  friend class ReadBudget;
  ReadMemory(ReadBudget& budget, FreshMemory memory)
      : budget_(&budget), memory_(std::move(memory)) {}

  ReadBudget* budget_ = nullptr;
  FreshMemory memory_;
};

// Thread-safe.
class ReadBudget {
 public:
  explicit ReadBudget(int64_t num_bytes) : num_bytes_(num_bytes) {}

  // kExhausted: current readers hold what there is; kTooLarge: more than there ever is.
  Result<ReadMemory> take(int64_t num_bytes);

 private:
  friend class ReadMemory;
  Result<void> reserve(int64_t num_bytes);
  void give_back(int64_t num_bytes);

  const int64_t num_bytes_;
  std::mutex mutex_;
  int64_t taken_bytes_ = 0;
};

}  // namespace millrace::kvstore
