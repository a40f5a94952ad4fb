// The device tier of the KV store in the memory of a GPU. For the store pages come and go through the host, which
// cannot read a slot; the device's own operations can (PageReader).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/api/device.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::worker {

class DeviceTier final : public kvstore::SlotMemory {
 public:
  // On the device's thread. kExhausted with the numbers. The device outlives the tier. `shares`: in memory
  // that other processes can map; where there is none, the log says why, and it is the process' own.
  static Result<std::unique_ptr<DeviceTier>> create(kernels::Device& device, int64_t num_slots,
                                                    int64_t slot_bytes, bool shares = false);

  // The region is of fixed size: only growth up to it succeeds.
  Result<void> resize(int64_t num_slots) override;
  Result<void> write(int64_t slot, std::span<const std::byte> bytes) override;
  Result<void> write_many(std::span<const int64_t> slots, std::span<const std::byte> bytes,
                          std::span<uint8_t> failed) override;
  Result<void> read(int64_t slot, std::span<std::byte> bytes) const override;
  std::span<const std::byte> address(int64_t) const override { return {}; }
  const std::byte* device_address(int64_t slot) const override {
    return lane_of(slot).given_up ? nullptr : at(slot);
  }
  std::optional<kvstore::SharedDeviceMemory> shared_device() const override { return shared_; }

 private:
  // A page's copy and its wait are one of several at a time: pages are small, and one lane would
  // spend most of its time waiting.
  static constexpr size_t kNumLanes = 8;
  // Pages that are written at once wait once, for up to as many as PageWriter brings. Few threads do.
  static constexpr size_t kNumBatchLanes = 4;
  static constexpr int64_t kBatchSlots = 128;
  struct Lane {
    std::mutex mutex;
    std::unique_ptr<kernels::CopyLane> lane;
    kernels::HostBuffer staging;  // one slot, or a batch
    // A copy did not end in time or failed. It may still be under way, between staging memory and
    // slot, so neither is used again: a slot is always copied by the same lane.
    std::atomic<bool> given_up = false;
  };

  DeviceTier(int64_t num_slots, int64_t slot_bytes)
      : num_slots_(num_slots), slot_bytes_(slot_bytes) {}
  Result<void> allocate(kernels::Device& device, bool shares);
  std::byte* at(int64_t slot) const;
  Lane& lane_of(int64_t slot) const { return lanes_[static_cast<size_t>(slot) % kNumLanes]; }
  // With the lane's mutex held. kIo where it was given up.
  Result<void> check_usable(const Lane& lane, int64_t slot) const;
  Result<void> copy(Lane& lane, void* destination, const void* source, int64_t bytes) const;
  // Waits for what the lane was given by `copies`.
  template <typename Copies>
  static Result<void> finish(Lane& lane, const Copies& copies);
  Result<void> write_batch(std::span<const int64_t> slots, std::span<const std::byte> bytes);

  int64_t num_slots_;
  int64_t slot_bytes_;
  kernels::DeviceBuffer memory_;
  std::optional<kvstore::SharedDeviceMemory> shared_;
  mutable std::array<Lane, kNumLanes> lanes_;
  std::array<Lane, kNumBatchLanes> batch_lanes_;
  std::atomic<size_t> next_batch_ = 0;
};

}  // namespace millrace::worker
