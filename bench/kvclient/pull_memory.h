// SPDX-License-Identifier: Apache-2.0
// GPU memory that pages are pulled into, and how fast plain copies reach it. A failure ends the
// program. One thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvclient/device/cuda_driver.h"

namespace millrace::bench {

class PullMemory {
 public:
  PullMemory(int32_t device, int64_t bytes);
  PullMemory(const PullMemory&) = delete;
  PullMemory& operator=(const PullMemory&) = delete;
  ~PullMemory();

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  // Copies all of it to `to`.
  void copy_to_host(std::byte* to) const;
  // Seconds to fill all of it from pinned memory: the same 1 GiB is sent repeatedly, one call each.
  double plain_copy_s() const;
  // Seconds to copy as many bytes from the memory of another GPU, in one call.
  double peer_copy_s(int32_t from_device) const;

 private:
  const kvclient::CudaDriver& driver_;
  const int32_t ordinal_;
  const int64_t bytes_;
  int device_ = 0;
  void* context_ = nullptr;
  kvclient::CudaDriver::Address address_ = 0;
};

}  // namespace millrace::bench
