// SPDX-License-Identifier: Apache-2.0
// Slots in one file. The file is unlinked as soon as it is open, so a process leaves nothing
// behind, however it dies. resize() allocates its blocks, so a full disk is found when room is
// reserved and not in the middle of a request.
#pragma once

#include <memory>
#include <string>

#include "kvstore/tiers/slot_memory.h"

namespace millrace::kvstore {

class DiskTier final : public SlotMemory {
 public:
  // kIo if no file can be created in `directory`.
  static Result<std::unique_ptr<DiskTier>> open(const std::string& directory, int64_t slot_bytes);
  ~DiskTier() override;
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  Result<void> resize(int64_t num_slots) override;
  Result<void> write(int64_t slot, std::span<const std::byte> bytes) override;
  Result<void> read(int64_t slot, std::span<std::byte> bytes) const override;
  std::span<const std::byte> address(int64_t) const override { return {}; }

 private:
  DiskTier(std::string directory, int fd, int64_t slot_bytes)
      : directory_(std::move(directory)), fd_(fd), slot_bytes_(slot_bytes) {}
  Result<void> allocate(int64_t from_bytes, int64_t to_bytes);

  std::string directory_;
  int fd_;
  int64_t slot_bytes_;
  int64_t num_slots_ = 0;
};

}  // namespace millrace::kvstore
