// What a device has page-locked of a host pool, so that it reads pages where they lie. Where the
// system refuses, cached pages come to the device by way of the readers' own page-locked memory, as before.
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

  // A piece of the pool, whole pages of the system; outlives it. Whether it is locked: after a refusal, of which there is
  // one line in the log, nothing is tried any more.
  bool add(std::span<const std::byte> piece);

 private:
  kernels::Device& device_;
  std::mutex mutex_;
  bool refused_ = false;
  std::vector<kernels::HostLock> locks_;
};

}  // namespace millrace::worker
