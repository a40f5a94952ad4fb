// The bytes behind a tier: an array of equal slots. Implementations: MemoryTier (host memory; also
// the "device" tier of the CPU backend), DiskTier (a file), worker/device_tier (a GPU's memory).
//
// Knows nothing of pages or of which slots are free. Threads: any; the caller sees to it that
// nobody reads a slot while it is written, that one resize() runs at a time, and that nobody uses a
// slot that it adds or takes away. Slots that stay are read and written meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/result.h"
#include "common/system/prefault.h"
#include "common/system/shared_memory.h"

namespace millrace::kvstore {

// Memory of a device that other processes of its host can map, by the descriptor of what was exported.
struct SharedDeviceMemory {
  int descriptor = -1;  // its owner's
  int64_t bytes = 0;    // of the whole, as who maps it must say
};

class SlotMemory {
 public:
  virtual ~SlotMemory() = default;

  // Makes slots [0, num_slots) usable; what was in those below the old size stays. On error the old
  // size holds. kIo: the storage behind it is full.
  virtual Result<void> resize(int64_t num_slots) = 0;

  // `bytes` fills the slot from its start.
  virtual Result<void> write(int64_t slot, std::span<const std::byte> bytes) = 0;
  // The same of several slots, `bytes` in equal parts. On an error, the first, failed[i] is 1 where slot i may
  // hold anything; elsewhere it stays as it is.
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
  virtual Result<void> read(int64_t slot, std::span<std::byte> bytes) const = 0;

  // The slot in place, one slot long; empty when it cannot be addressed and must be read().
  virtual std::span<const std::byte> address(int64_t slot) const = 0;
  // Of a slot that the host cannot address: where operations of this process' device find it. Null: nowhere,
  // or what it holds is not certain.
  virtual const std::byte* device_address(int64_t /*slot*/) const { return nullptr; }

  // Makes host memory behind it resident on so many threads, meanwhile, and tells `then` of it piece by
  // piece. Once.
  virtual void prefault(int /*num_threads*/, const Prefault::Then& /*then*/) {}

  // What other processes can map of it, slot 0 first; null for what is this process' alone.
  virtual const SharedMemory* shared() const { return nullptr; }
  // The same of slots that the host cannot address.
  virtual std::optional<SharedDeviceMemory> shared_device() const { return std::nullopt; }
};

}  // namespace millrace::kvstore
