// How pages reach the memory of a device: through staging memory of the host, from which what was
// checked there is brought to where it belongs. The client knows no more of devices than this, so
// that it needs none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/result.h"

namespace millrace::kvclient {

// `bytes` of staging memory from `from` on go to `to`, an address of the device.
struct DevicePiece {
  std::byte* to = nullptr;
  uint32_t from = 0;
  uint32_t bytes = 0;
};

// Of one thread of a client and one device.
class DeviceLane {
 public:
  virtual ~DeviceLane() = default;

  // At least `bytes` of memory to stage pages in, the same until more is asked for. kExhausted.
  virtual Result<std::span<std::byte>> staging(int64_t bytes) = 0;
  // Returns once the pieces, of the first `bytes` of the staging memory, are in the device's memory
  // and visible to work that is given to the device from then on. After an error nothing writes
  // there any more. kInternal: the device's error.
  virtual Result<void> scatter(int64_t bytes, std::span<const DevicePiece> pieces) = 0;
};

// Thread-safe.
class DeviceCopier {
 public:
  virtual ~DeviceCopier() = default;

  // kUnsupported: no such device, or no driver. The copier outlives the lane.
  virtual Result<std::unique_ptr<DeviceLane>> open(int32_t device) = 0;
};

}  // namespace millrace::kvclient
