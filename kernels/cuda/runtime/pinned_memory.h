// Page-locked host memory. It keeps the small blocks that are given back: locking a page and
// unlocking it costs as much as a copy of megabytes, and a request has half a dozen buffers of
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

  // Null when there is none.
  void* allocate(int64_t bytes);
  // As cudaFreeHost, waits for the whole device: nothing is on its way there any more.
  void free(void* data) noexcept;

 private:
  // Kept blocks are of powers of two up to 4 MiB.
  std::unordered_map<void*, int64_t> block_bytes_;
  std::unordered_map<int64_t, std::vector<void*>> kept_;  // by size
};

}  // namespace millrace::kernels::cuda
