// SPDX-License-Identifier: Apache-2.0
// The bytes behind a tier: an array of equal slots. Implementations: MemoryTier (host memory; also
// the "device" tier of the CPU backend), DiskTier (a file), worker/device_tier (a GPU's memory).
//
// Knows nothing of pages or of which slots are free. Threads: any. The caller makes sure that
// nobody reads a slot while it is written, that one resize() runs at a time, and that nobody uses a
// slot that it adds or removes. Slots that stay may be read and written meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/result.h"
#include "common/system/prefault.h"
#include "common/system/shared_memory.h"
#include "kvstore/tiers/device_halves.h"

namespace millrace::kvstore {

// Memory of a device that other processes on its host can map, by the descriptor it was exported
// as.
struct SharedDeviceMemory {
  int descriptor = -1;  // belongs to the memory's owner
  int64_t bytes = 0;    // of the whole memory, which a process that maps it must state
};

class SlotMemory {
 public:
  virtual ~SlotMemory() = default;

  // Makes slots [0, num_slots) usable; the contents of those below the old size stay. After an
  // error the old size holds. kIo: the storage behind it is full.
  virtual Result<void> resize(int64_t num_slots) = 0;

  // `bytes` fills the slot from its start.
  virtual Result<void> write(int64_t slot, std::span<const std::byte> bytes) = 0;
  // The same for several slots; `bytes` is divided equally. Returns the first error. failed[i] is
  // set to 1 if slot i may hold anything, and is left alone otherwise.
  virtual Result<void> write_many(std::span<const int64_t> slots, std::span<const std::byte> bytes,
                                  std::span<uint8_t> failed) {
    Result<void> all;
    const size_t part = slots.empty() ? 0 : bytes.size() / slots.size();
    for (size_t i = 0; i < slots.size(); ++i) {
      auto written = write(slots[i], bytes.subspan(i * part, part));
      if (written.ok()) continue;
      failed[i] = 1;
      if (all.ok()) all = std::move(written);
    }
    return all;
  }
  // The same by the slots' device, for slots that the host cannot address. `from.any()`.
  virtual Result<void> write_on_device(std::span<const int64_t> /*slots*/,
                                       const DeviceHalves& /*from*/,
                                       std::span<uint8_t> /*failed*/) {
    return Error(Errc::kUnsupported, "slots of no device");
  }
  virtual bool writes_on_device() const { return false; }
  virtual Result<void> read(int64_t slot, std::span<std::byte> bytes) const = 0;

  // The slot in place, one slot long; empty if it cannot be addressed and must be read().
  virtual std::span<const std::byte> address(int64_t slot) const = 0;
  // For a slot that the host cannot address: where operations of this process' device find it. Null
  // if they cannot, or if its contents are not certain.
  virtual const std::byte* device_address(int64_t /*slot*/) const { return nullptr; }

  // Makes the host memory behind it resident on this many threads, while it is in use, and tells
  // `then` of each piece. Call once.
  virtual void prefault(int /*num_threads*/, const Prefault::Then& /*then*/) {}

  // What other processes can map of it, slot 0 first; null if it is private to this process.
  virtual const SharedMemory* shared() const { return nullptr; }
  // The same for slots that the host cannot address.
  virtual std::optional<SharedDeviceMemory> shared_device() const { return std::nullopt; }
};

}  // namespace millrace::kvstore
