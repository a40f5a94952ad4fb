// SPDX-License-Identifier: Apache-2.0
#include "kvstore/pages/page_io.h"

#include <algorithm>

#include "common/checksum.h"

namespace millrace::kvstore {

std::array<int64_t, kNumTiers> PageIo::max_slots() const {
  std::array<int64_t, kNumTiers> slots;
  std::transform(tiers_.begin(), tiers_.end(), slots.begin(),
                 [](const TierStorage& tier) { return tier.max_slots; });
  return slots;
}

Result<void> PageIo::write(const PageSlots& slots, std::span<const std::byte> bytes) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (slots.has(tier)) MR_RETURN_IF_ERROR(memory(tier).write(slots[tier], bytes));
  }
  return {};
}

Result<void> PageIo::write_many(std::span<const PageSlots> slots, std::span<const std::byte> bytes,
                                const DeviceHalves& on_device, std::span<uint8_t> failed) {
  const auto page_bytes = static_cast<size_t>(page_bytes_);
  std::vector<int64_t> run;
  Result<void> all;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    // Runs of consecutive pages that have a slot in this tier: usually all.
    for (size_t first = 0; first < slots.size(); first += std::max<size_t>(1, run.size())) {
      run.clear();
      for (size_t i = first; i < slots.size() && slots[i].has(tier); ++i) {
        run.push_back(slots[i][tier]);
      }
      if (run.empty()) continue;
      const auto run_failed = failed.subspan(first, run.size());
      const bool by_device =
          tier == Tier::kDevice && on_device.any() && memory(tier).writes_on_device();
      auto copied =
          by_device
              ? memory(tier).write_on_device(
                    run, on_device.after(static_cast<int64_t>(first * page_bytes / 2)), run_failed)
              : memory(tier).write_many(
                    run, bytes.subspan(first * page_bytes, run.size() * page_bytes), run_failed);
      if (!copied.ok() && all.ok()) all = std::move(copied);
    }
  }
  return all;
}

std::span<const std::byte> PageIo::address(Tier tier, int32_t slot) const {
  const auto whole_slot = memory(tier).address(slot);
  return whole_slot.first(std::min(whole_slot.size(), static_cast<size_t>(page_bytes_)));
}

void PageIo::prefault(int num_threads, const Prefault::Then& then) {
  for (auto& tier : tiers_) {
    if (tier.memory) tier.memory->prefault(num_threads, then);
  }
}

std::vector<const SharedMemory*> PageIo::shared() const {
  std::vector<const SharedMemory*> all;
  for (const TierStorage& tier : tiers_) {
    if (tier.memory && tier.memory->shared() != nullptr) all.push_back(tier.memory->shared());
  }
  return all;
}

std::optional<SharedDeviceMemory> PageIo::shared_device() const {
  const auto& device = tiers_[static_cast<int>(Tier::kDevice)].memory;
  return device ? device->shared_device() : std::nullopt;
}

// The checksum of a written page never changes, so it may be read outside the store's lock.
Result<void> PageIo::read(Tier tier, int32_t slot, const PageEntry& page,
                          std::span<std::byte> bytes) const {
  MR_RETURN_IF_ERROR(memory(tier).read(slot, bytes));
  const uint64_t sum = checksum(bytes);
  if (sum == page.checksum) return {};
  const PageKey key = page.column->key_of(page);
  return error(Errc::kCorrupt,
               "request '{}': layer {} kv head {} page {} read from disk slot {} has checksum "
               "{:016x}, but was written with {:016x}",
               page.column->request_id(), key.layer, key.kv_head, key.page, slot, sum,
               page.checksum);
}

}  // namespace millrace::kvstore
