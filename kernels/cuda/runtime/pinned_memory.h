// SPDX-License-Identifier: Apache-2.0
// Allocates page-locked host memory. Small blocks are kept when they are freed: locking and
// unlocking a page costs as much as copying megabytes, and a request has half a dozen buffers of
// kilobytes.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace millrace::kernels::cuda {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  // Null if there is none.
  void* allocate(int64_t bytes);
  // Like cudaFreeHost, waits for the whole device, so that no copy still uses the memory.
  void free(void* data) noexcept;

 private:
  // The sizes of kept blocks are powers of two up to 4 MiB.
  std::unordered_map<void*, int64_t> block_bytes_;
  std::unordered_map<int64_t, std::vector<void*>> kept_;  // by size
};

}  // namespace millrace::kernels::cuda
