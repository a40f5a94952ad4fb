// SPDX-License-Identifier: Apache-2.0
// Slots in one region of host memory, mapped once. Pages of the region become resident when first
// written, so an unused budget costs address space only, unless prefault() is called.
#pragma once

#include <memory>
#include <optional>

#include "kvstore/tiers/slot_memory.h"

namespace millrace::kvstore {

class MemoryTier final : public SlotMemory {
 public:
  // kExhausted if the operating system refuses the region.
  static Result<std::unique_ptr<MemoryTier>> allocate(int64_t num_slots, int64_t slot_bytes);
  // The same in memory that other processes can map. If the system has none that is safe to share,
  // the memory is private, with a warning in the log.
  static Result<std::unique_ptr<MemoryTier>> allocate_shared(int64_t num_slots, int64_t slot_bytes);
  ~MemoryTier() override;
  MemoryTier(const MemoryTier&) = delete;
  MemoryTier& operator=(const MemoryTier&) = delete;

  // The region is of fixed size: only growth up to it succeeds.
  Result<void> resize(int64_t num_slots) override;
  Result<void> write(int64_t slot, std::span<const std::byte> bytes) override;
  Result<void> read(int64_t slot, std::span<std::byte> bytes) const override;
  std::span<const std::byte> address(int64_t slot) const override;
  // Proceeds in the order of the slots.
  void prefault(int num_threads, const Prefault::Then& then) override;
  const SharedMemory* shared() const override { return shared_ ? &*shared_ : nullptr; }

 private:
  MemoryTier(std::byte* base, int64_t num_slots, int64_t slot_bytes)
      : base_(base), num_slots_(num_slots), slot_bytes_(slot_bytes) {}
  MemoryTier(SharedMemory shared, int64_t num_slots, int64_t slot_bytes)
      : shared_(std::move(shared)),
        base_(shared_->bytes().data()),
        num_slots_(num_slots),
        slot_bytes_(slot_bytes) {}
  std::byte* at(int64_t slot) const;

  std::optional<SharedMemory> shared_;  // if set, owns what base_ points to
  std::byte* base_;
  int64_t num_slots_;
  int64_t slot_bytes_;
  std::optional<Prefault> prefault_;  // of what base_ points to
};

}  // namespace millrace::kvstore
