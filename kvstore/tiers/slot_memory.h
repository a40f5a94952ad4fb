// The bytes behind a tier: an array of equal slots. Implementations: MemoryTier (host memory; also
// the "device" tier of the CPU backend), DiskTier (a file), worker/device_tier (a GPU's memory).
//
// Knows nothing of pages or of which slots are free. Threads: any; the caller sees to it that
// nobody reads a slot while it is written, that one resize() runs at a time, and that nobody uses a
// slot that it adds or takes away. Slots that stay are read and written meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "common/system/prefault.h"
#include "common/system/shared_memory.h"

namespace millrace::kvstore {

class SlotMemory {
 public:
  virtual ~SlotMemory() = default;

  // Makes slots [0, num_slots) usable; what was in those below the old size stays. On error the old
  // size holds. kIo: the storage behind it is full.
  virtual Result<void> resize(int64_t num_slots) = 0;

  // `bytes` fills the slot from its start.
  virtual Result<void> write(int64_t slot, std::span<const std::byte> bytes) = 0;
  virtual Result<void> read(int64_t slot, std::span<std::byte> bytes) const = 0;

  // The slot in place, one slot long; empty when it cannot be addressed and must be read().
  virtual std::span<const std::byte> address(int64_t slot) const = 0;

  // Makes host memory behind it resident on so many threads, meanwhile, and tells `then` of it piece by
  // piece. Once.
  virtual void prefault(int /*num_threads*/, const Prefault::Then& /*then*/) {}

  // What other processes can map of it, slot 0 first; null for what is this process' alone.
  virtual const SharedMemory* shared() const { return nullptr; }
};

}  // namespace millrace::kvstore
