// SPDX-License-Identifier: Apache-2.0
// The device tier of the KV store, in a GPU's memory. The host cannot read a slot, so the store's
// pages come and go through copies in host memory. The device's own operations can read a slot
// (PageReader), and pages that lie in its memory already are copied to slots there.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/api/device_memory.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::worker {

class DeviceTier final : public kvstore::SlotMemory {
 public:
  // Call it on the device's thread. The device outlives the tier. `shares`: takes memory that other
  // processes can map; where there is none, logs why and takes private memory. kExhausted, with the
  // numbers.
  static Result<std::unique_ptr<DeviceTier>> create(kernels::DeviceMemory& device,
                                                    int64_t num_slots, int64_t slot_bytes,
                                                    bool shares = false);

  // The region has a fixed size: only growth up to it succeeds.
  Result<void> resize(int64_t num_slots) override;
  Result<void> write(int64_t slot, std::span<const std::byte> bytes) override;
  Result<void> write_many(std::span<const int64_t> slots, std::span<const std::byte> bytes,
                          std::span<uint8_t> failed) override;
  bool writes_on_device() const override { return true; }
  Result<void> write_on_device(std::span<const int64_t> slots, const kvstore::DeviceHalves& from,
                               std::span<uint8_t> failed) override;
  Result<void> read(int64_t slot, std::span<std::byte> bytes) const override;
  std::span<const std::byte> address(int64_t) const override { return {}; }
  const std::byte* device_address(int64_t slot) const override {
    return lane_of(slot).given_up ? nullptr : at(slot);
  }
  std::optional<kvstore::SharedDeviceMemory> shared_device() const override { return shared_; }

 private:
  // Copies of single pages run on several lanes at a time: pages are small, and one lane would
  // spend most of its time waiting.
  static constexpr size_t kNumLanes = 8;
  // A batch of pages is written with a single wait. It has up to as many pages as PageWriter writes
  // at once. Few threads write batches.
  static constexpr size_t kNumBatchLanes = 4;
  static constexpr int64_t kBatchSlots = 128;
  struct Lane {
    std::mutex mutex;
    std::unique_ptr<kernels::CopyLane> lane;
    kernels::HostBuffer staging;  // one slot, or a batch
    // A copy failed or did not end in time. It may still be under way between staging memory and
    // slot, so neither is used again: the same lane always copies a slot.
    std::atomic<bool> given_up = false;
  };

  DeviceTier(int64_t num_slots, int64_t slot_bytes)
      : num_slots_(num_slots), slot_bytes_(slot_bytes) {}
  Result<void> allocate(kernels::DeviceMemory& device, bool shares);
  std::byte* at(int64_t slot) const;
  Lane& lane_of(int64_t slot) const { return lanes_[static_cast<size_t>(slot) % kNumLanes]; }
  // Call it with the lane's mutex held. kIo where the lane was given up.
  Result<void> check_usable(const Lane& lane, int64_t slot) const;
  Result<void> copy(Lane& lane, void* destination, const void* source, int64_t bytes) const;
  // Calls `copies`, which gives the lane its copies, and waits for them.
  template <typename Copies>
  static Result<void> finish(Lane& lane, const Copies& copies);
  // Calls `write` with parts of at most `most` slots, and the number of each part's first one.
  template <typename Write>
  static Result<void> write_parts(std::span<const int64_t> slots, std::span<uint8_t> failed,
                                  int64_t most, const Write& write);
  // Calls `copies` with a batch lane, which it gives copies to these slots, and waits for them.
  template <typename Copies>
  Result<void> write_batch(std::span<const int64_t> slots, const Copies& copies);

  int64_t num_slots_;
  int64_t slot_bytes_;
  kernels::DeviceBuffer memory_;
  std::optional<kvstore::SharedDeviceMemory> shared_;
  mutable std::array<Lane, kNumLanes> lanes_;
  std::array<Lane, kNumBatchLanes> batch_lanes_;
  std::atomic<size_t> next_batch_ = 0;
};

}  // namespace millrace::worker
