// SPDX-License-Identifier: Apache-2.0
// A device tier that the host cannot address but other processes can map, like a GPU's. A memfd
// stands for the device's memory. Tests can look at its contents and damage them.
#pragma once

#include <cstring>
#include <memory>
#include <utility>

#include "common/check.h"
#include "kvstore/tiers/slot_memory.h"

namespace millrace::test {

class SharedDeviceSlots final : public kvstore::SlotMemory {
 public:
  SharedDeviceSlots(std::shared_ptr<SharedMemory> memory, int64_t slot_bytes)
      : memory_(std::move(memory)), slot_bytes_(slot_bytes) {}

  Result<void> resize(int64_t) override { return {}; }
  Result<void> write(int64_t slot, std::span<const std::byte> bytes) override {
    std::memcpy(at(slot), bytes.data(), bytes.size());
    return {};
  }
  Result<void> read(int64_t slot, std::span<std::byte> bytes) const override {
    std::memcpy(bytes.data(), at(slot), bytes.size());
    return {};
  }
  std::span<const std::byte> address(int64_t) const override { return {}; }
  std::optional<kvstore::SharedDeviceMemory> shared_device() const override {
    return kvstore::SharedDeviceMemory{.descriptor = memory_->descriptor(),
                                       .bytes = std::ssize(memory_->bytes())};
  }

 private:
  std::byte* at(int64_t slot) const {
    MR_CHECK((slot + 1) * slot_bytes_ <= std::ssize(memory_->bytes()), "slot {}", slot);
    return memory_->bytes().data() + slot * slot_bytes_;
  }

  const std::shared_ptr<SharedMemory> memory_;
  const int64_t slot_bytes_;
};

}  // namespace millrace::test
