// SPDX-License-Identifier: Apache-2.0
#include "kvstore/tiers/read_budget.h"

#include <new>

#include "common/units.h"

namespace millrace::kvstore {

ReadMemory::~ReadMemory() {
  if (budget_ == nullptr) return;
  const int64_t bytes = memory_.bytes();
  { const FreshMemory freed = std::move(memory_); }
  budget_->give_back(bytes);
}

Result<ReadMemory> ReadBudget::take(int64_t num_bytes) {
  if (num_bytes == 0) return ReadMemory();
  MR_RETURN_IF_ERROR(reserve(num_bytes));
  try {
    return ReadMemory(*this, FreshMemory(num_bytes));
  } catch (const std::bad_alloc&) {
    give_back(num_bytes);
    return error(Errc::kExhausted, "cannot allocate memory to read {} of pages",
                 format_bytes(num_bytes));
  }
}

Result<void> ReadBudget::reserve(int64_t num_bytes) {
  if (num_bytes > num_bytes_) {
    return error(Errc::kTooLarge, "{} of pages to read at once, limit {}", format_bytes(num_bytes),
                 format_bytes(num_bytes_));
  }
  const std::lock_guard lock(mutex_);
  if (num_bytes > num_bytes_ - taken_bytes_) {
    return error(Errc::kExhausted, "cannot read {} of pages now: readers hold {} of {}",
                 format_bytes(num_bytes), format_bytes(taken_bytes_), format_bytes(num_bytes_));
  }
  taken_bytes_ += num_bytes;
  return {};
}

void ReadBudget::give_back(int64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  taken_bytes_ -= num_bytes;
}

}  // namespace millrace::kvstore
