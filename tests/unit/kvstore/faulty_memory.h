// SPDX-License-Identifier: Apache-2.0
// A SlotMemory that makes trouble on demand. It refuses, flips bits, hides its address as device
// memory does, or calls the test back in the middle of a copy, which makes races repeatable.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "kvstore/tiers/memory_tier.h"

namespace millrace::kvstore {

struct Faults {
  bool fail_resize = false;
  bool fail_write = false;
  bool flip_read = false;
  bool addressable = true;
  int64_t num_slots = -1;  // as of the last resize
  std::atomic<int64_t> num_reads = 0;
  std::function<void()> while_writing;  // called once, by the next write
  std::function<void()> while_reading;  // called once, by the next read
};

class FaultyMemory final : public SlotMemory {
 public:
  FaultyMemory(std::unique_ptr<SlotMemory> inner, std::shared_ptr<Faults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  Result<void> resize(int64_t num_slots) override {
    if (faults_->fail_resize) return error(Errc::kIo, "injected: no space for {}", num_slots);
    faults_->num_slots = num_slots;
    return inner_->resize(num_slots);
  }
  Result<void> write(int64_t slot, std::span<const std::byte> bytes) override {
    if (const auto callback = std::exchange(faults_->while_writing, nullptr)) callback();
    if (faults_->fail_write) return error(Errc::kIo, "injected: writing slot {}", slot);
    return inner_->write(slot, bytes);
  }
  Result<void> read(int64_t slot, std::span<std::byte> bytes) const override {
    ++faults_->num_reads;
    if (const auto callback = std::exchange(faults_->while_reading, nullptr)) callback();
    MR_RETURN_IF_ERROR(inner_->read(slot, bytes));
    if (faults_->flip_read) bytes[bytes.size() / 2] ^= std::byte{0x10};
    return {};
  }
  std::span<const std::byte> address(int64_t slot) const override {
    if (!faults_->addressable) return {};
    return inner_->address(slot);
  }

 private:
  std::unique_ptr<SlotMemory> inner_;
  std::shared_ptr<Faults> faults_;
};

}  // namespace millrace::kvstore
