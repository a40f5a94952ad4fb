// Slots in one region of host memory, mapped once. Pages of the region become resident when first
// written, so an unused budget costs address space only.
#pragma once

#include <memory>

#include "kvstore/tiers/slot_memory.h"

namespace millrace::kvstore {

class MemoryTier final : public SlotMemory {
 public:
  // kExhausted when the operating system refuses the region.
  static Result<std::unique_ptr<MemoryTier>> allocate(int64_t num_slots, int64_t slot_bytes);
  ~MemoryTier() override;
  MemoryTier(const MemoryTier&) = delete;
  MemoryTier& operator=(const MemoryTier&) = delete;

  // The region is of fixed size: only growth up to it succeeds.
  Result<void> resize(int64_t num_slots) override;
  Result<void> write(int64_t slot, std::span<const std::byte> bytes) override;
  Result<void> read(int64_t slot, std::span<std::byte> bytes) const override;
  std::span<const std::byte> address(int64_t slot) const override;

 private:
  MemoryTier(std::byte* base, int64_t num_slots, int64_t slot_bytes)
      : base_(base), num_slots_(num_slots), slot_bytes_(slot_bytes) {}
  std::byte* at(int64_t slot) const;

  std::byte* base_;
  int64_t num_slots_;
  int64_t slot_bytes_;
};

}  // namespace millrace::kvstore
