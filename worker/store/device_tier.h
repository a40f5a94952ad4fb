// The device tier of the KV store in the memory of a GPU. Pages come and go through the host: a
// slot has no address that the store could read.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/api/device.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::worker {

class DeviceTier final : public kvstore::SlotMemory {
 public:
  // On the device's thread. kExhausted with the numbers. The device outlives the tier.
  static Result<std::unique_ptr<DeviceTier>> create(kernels::Device& device, int64_t num_slots,
                                                    int64_t slot_bytes);

  // The region is of fixed size: only growth up to it succeeds.
  Result<void> resize(int64_t num_slots) override;
  Result<void> write(int64_t slot, std::span<const std::byte> bytes) override;
  Result<void> read(int64_t slot, std::span<std::byte> bytes) const override;
  std::span<const std::byte> address(int64_t) const override { return {}; }

 private:
  // A page's copy and its wait are one of several at a time: pages are small, and one lane would
  // spend most of its time waiting.
  static constexpr size_t kNumLanes = 8;
  struct Lane {
    std::mutex mutex;
    std::unique_ptr<kernels::CopyLane> lane;
    kernels::HostBuffer staging;  // one slot
    // A copy did not end in time or failed. It may still be under way, between staging memory and
    // slot, so neither is used again: a slot is always copied by the same lane.
    bool given_up = false;
  };

  DeviceTier(int64_t num_slots, int64_t slot_bytes)
      : num_slots_(num_slots), slot_bytes_(slot_bytes) {}
  std::byte* at(int64_t slot) const;
  Lane& lane_of(int64_t slot) const { return lanes_[static_cast<size_t>(slot) % kNumLanes]; }
  // With the lane's mutex held. kIo where it was given up.
  Result<void> check_usable(const Lane& lane, int64_t slot) const;
  Result<void> copy(Lane& lane, void* destination, const void* source, int64_t bytes) const;

  int64_t num_slots_;
  int64_t slot_bytes_;
  kernels::DeviceBuffer memory_;
  mutable std::array<Lane, kNumLanes> lanes_;
};

}  // namespace millrace::worker
