// SPDX-License-Identifier: Apache-2.0
// Moves bytes of pages in and out of the tiers. Holds the memory of all three. Takes no lock and
// keeps no books: the caller owns the slots it names.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "kvstore/pages/page_column.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::kvstore {

// A tier that is not used has no memory and 0 slots. Device and host memory hold max_slots from the
// start, the disk none.
struct TierStorage {
  std::unique_ptr<SlotMemory> memory;
  int64_t max_slots = 0;
};
using TierStorages = std::array<TierStorage, kNumTiers>;

class PageIo {
 public:
  PageIo(TierStorages tiers, int64_t page_bytes)
      : tiers_(std::move(tiers)), page_bytes_(page_bytes) {}

  std::array<int64_t, kNumTiers> max_slots() const;
  int64_t page_bytes() const { return page_bytes_; }

  // Writes into every slot named.
  Result<void> write(const PageSlots& slots, std::span<const std::byte> bytes);
  // Writes several pages, one after the other in `bytes`, each into its slots; into those of a
  // device from `on_device`, where they lie there. Returns the first error; failed[i] is 1 for
  // pages that are not written.
  Result<void> write_many(std::span<const PageSlots> slots, std::span<const std::byte> bytes,
                          const DeviceHalves& on_device, std::span<uint8_t> failed);
  // The page in place; empty if its tier must be read.
  std::span<const std::byte> address(Tier tier, int32_t slot) const;
  const std::byte* device_address(Tier tier, int32_t slot) const {
    return memory(tier).device_address(slot);
  }
  std::vector<const SharedMemory*> shared() const;
  std::optional<SharedDeviceMemory> shared_device() const;
  void prefault(int num_threads, const Prefault::Then& then);
  // kCorrupt, naming the page, if the bytes do not have the checksum they were written with.
  Result<void> read(Tier tier, int32_t slot, const PageEntry& page,
                    std::span<std::byte> bytes) const;
  Result<void> resize_disk(int64_t num_slots) { return memory(Tier::kDisk).resize(num_slots); }

 private:
  SlotMemory& memory(Tier tier) const { return *tiers_[static_cast<int>(tier)].memory; }

  TierStorages tiers_;
  int64_t page_bytes_;
};

}  // namespace millrace::kvstore
