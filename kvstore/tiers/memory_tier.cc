// SPDX-License-Identifier: Apache-2.0
#include "kvstore/tiers/memory_tier.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "common/log.h"
#include "common/system/stream_copy.h"
#include "common/units.h"

namespace millrace::kvstore {

Result<std::unique_ptr<MemoryTier>> MemoryTier::allocate(int64_t num_slots, int64_t slot_bytes) {
  const int64_t bytes = num_slots * slot_bytes;
  if (bytes == 0) return std::unique_ptr<MemoryTier>(new MemoryTier(nullptr, 0, slot_bytes));
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return error(Errc::kExhausted, "cannot allocate {} KV slots of {} ({}): {}", num_slots,
                 format_bytes(slot_bytes), format_bytes(bytes),
                 std::generic_category().message(errno));
  }
  // Fewer page faults on first touch; a kernel without huge pages refuses, which does no harm.
  madvise(base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return std::unique_ptr<MemoryTier>(
      new MemoryTier(static_cast<std::byte*>(base), num_slots, slot_bytes));
}

Result<std::unique_ptr<MemoryTier>> MemoryTier::allocate_shared(int64_t num_slots,
                                                                int64_t slot_bytes) {
  if (num_slots == 0) return allocate(num_slots, slot_bytes);
  auto shared = SharedMemory::create(num_slots * slot_bytes);
  if (!shared.ok()) {
    log::warn("decode nodes on this host cannot map KV pages: {}", shared.error().message);
    return allocate(num_slots, slot_bytes);
  }
  return std::unique_ptr<MemoryTier>(new MemoryTier(std::move(*shared), num_slots, slot_bytes));
}

MemoryTier::~MemoryTier() {
  prefault_.reset();
  if (base_ != nullptr && !shared_) munmap(base_, static_cast<size_t>(num_slots_ * slot_bytes_));
}

Result<void> MemoryTier::resize(int64_t num_slots) {
  if (num_slots <= num_slots_) return {};
  return error(Errc::kExhausted, "{} KV slots requested, the region has {}", num_slots, num_slots_);
}

Result<void> MemoryTier::write(int64_t slot, std::span<const std::byte> bytes) {
  stream_copy(at(slot), bytes.data(), bytes.size());
  return {};
}

Result<void> MemoryTier::read(int64_t slot, std::span<std::byte> bytes) const {
  std::memcpy(bytes.data(), at(slot), bytes.size());
  return {};
}

std::span<const std::byte> MemoryTier::address(int64_t slot) const {
  return {at(slot), static_cast<size_t>(slot_bytes_)};
}

void MemoryTier::prefault(int num_threads, const Prefault::Then& then) {
  prefault_.emplace(std::span(base_, static_cast<size_t>(num_slots_ * slot_bytes_)), num_threads,
                    then);
}

std::byte* MemoryTier::at(int64_t slot) const {
  MR_CHECK(slot >= 0 && slot < num_slots_, "slot {} of {}", slot, num_slots_);
  return base_ + slot * slot_bytes_;
}

}  // namespace millrace::kvstore
