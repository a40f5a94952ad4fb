// The pool that a device's scratch and small buffers come from. It keeps what is freed, so that
// every layer after the first, and every request, allocates without asking the driver.
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
  // Memory for any stream, at once; null when there is none. As cudaFree, free() waits for the
  // whole device.
  void* allocate(int64_t bytes);
  void free(void* data) noexcept;
  // Held by the pool and in use by no one.
  int64_t idle_bytes() const;
  // Gives them back to the device. Memory whose work is still enqueued stays.
  void release_idle();

 private:
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t stream_ = nullptr;  // of allocate() and free() alone, so that it is always idle
};

}  // namespace millrace::kernels::cuda
