// The parts of a host pool that are page-locked for a device, so that it reads pages where they
// lie. Where the system refuses to lock them, cached pages reach the device through the readers'
// own page-locked memory, as they do until a part is locked.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/api/device.h"

namespace millrace::worker {

// Any thread.
class PoolLocks {
 public:
  // `device` outlives it.
  explicit PoolLocks(kernels::Device& device) : device_(device) {}

  // `piece` is a part of the pool, of whole system pages, and outlives this object. Returns whether
  // it is locked. After the first refusal, which is logged once, no more pieces are tried.
  bool add(std::span<const std::byte> piece);

 private:
  kernels::Device& device_;
  std::mutex mutex_;
  bool refused_ = false;
  std::vector<kernels::HostLock> locks_;
};

}  // namespace millrace::worker
