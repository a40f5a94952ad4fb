// SPDX-License-Identifier: Apache-2.0
// How pages reach the memory of a device. Either through staging memory of the host, where pages
// are checked and then brought to where they belong; or from a rank's pool in the memory of a
// device of this host, where the device itself checks them. The client knows devices only through
// this interface, so it works without any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/result.h"

namespace millrace::kvclient {

// `bytes` of staging memory starting at `from` go to `to`, an address of the device.
struct DevicePiece {
  std::byte* to = nullptr;
  uint32_t from = 0;
  uint32_t bytes = 0;
};

// A rank's pool in the memory of a device, mapped so that a device of this process can read it. It
// stays valid when the rank ends. Destroying it unmaps it: no gather from it may be under way by
// then.
class DevicePool {
 public:
  explicit DevicePool(int64_t bytes) : bytes_(bytes) {}
  virtual ~DevicePool() = default;

  int64_t bytes() const { return bytes_; }

 private:
  const int64_t bytes_;
};

// What a lane can gather: pages of whole KiB, up to the shared memory of a multiprocessor.
inline constexpr int64_t kGatheredPageStep = 1024;
inline constexpr int64_t kMaxGatheredPageBytes = int64_t{32} << 10;

// A page in a DevicePool, and the pieces that it is split into.
struct PooledPage {
  uint64_t offset = 0;  // 16-byte aligned
  uint64_t checksum = 0;
  uint32_t first_piece = 0;
  uint32_t num_pieces = 0;
};

// Belongs to one thread of a client and one device.
class DeviceLane {
 public:
  virtual ~DeviceLane() = default;

  // At least `bytes` of memory to stage pages in; the same memory until more is asked for.
  // kExhausted.
  virtual Result<std::span<std::byte>> staging(int64_t bytes) = 0;
  // Returns once the pieces, which lie in the first `bytes` of the staging memory, are in the
  // device's memory and visible to work submitted to the device from then on. After an error
  // nothing more is written there. kInternal: the device's error.
  virtual Result<void> scatter(int64_t bytes, std::span<const DevicePiece> pieces) = 0;
  // Brings pages from `pool`, which is mapped for this device, to where their pieces belong;
  // DevicePiece::from is an offset in the page. Returns for each page whether it is what its rank
  // wrote; other pages are not written. Otherwise as scatter(). The caller must have checked that
  // the pages lie in the pool.
  virtual Result<std::vector<bool>> gather(const DevicePool& pool, int64_t page_bytes,
                                           std::span<const PooledPage> pages,
                                           std::span<const DevicePiece> pieces) = 0;
};

// Thread-safe.
class DeviceCopier {
 public:
  virtual ~DeviceCopier() = default;

  // kUnsupported: no such device, or no driver. The copier outlives the lane.
  virtual Result<std::unique_ptr<DeviceLane>> open(int32_t device) = 0;
  // Maps `bytes` of memory behind a descriptor that another process has exported, for the lanes of
  // this device. kUnsupported: the device cannot reach it, or the descriptor is not of such memory.
  virtual Result<std::shared_ptr<const DevicePool>> map(int32_t device, int descriptor,
                                                        int64_t bytes) = 0;
};

}  // namespace millrace::kvclient
