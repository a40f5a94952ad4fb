// SPDX-License-Identifier: Apache-2.0
// The pool for a device's scratch memory and small buffers. It keeps freed memory, so that every
// layer after the first, and every request, allocates without a call to the driver.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::kernels::cuda {

class MemoryPool {
 public:
  explicit MemoryPool(int device);
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;
  ~MemoryPool();

  cudaMemPool_t get() const { return pool_; }
  // Memory that any stream may use at once, or null if there is none. Like cudaFree, free() waits
  // for the whole device.
  void* allocate(int64_t bytes);
  void free(void* data) noexcept;
  // Held by the pool but not in use.
  int64_t idle_bytes() const;
  // Returns idle memory to the device, except memory that enqueued work still uses.
  void release_idle();

 private:
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;  // only for allocate() and free(), so that it is always idle
};

}  // namespace millrace::kernels::cuda
