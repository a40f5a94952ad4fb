// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/memory_pool.h"

#include <limits>

#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {

MemoryPool::MemoryPool(int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {.type = cudaMemLocationTypeDevice, .id = device};
  MR_CUDA_CHECK(cudaMemPoolCreate(&pool_, &properties));
  uint64_t keep_bytes = std::numeric_limits<uint64_t>::max();
  MR_CUDA_CHECK(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep_bytes));
  MR_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

MemoryPool::~MemoryPool() {
  cudaStreamDestroy(stream_);
  cudaMemPoolDestroy(pool_);
}

void* MemoryPool::allocate(int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status =
      cudaMallocFromPoolAsync(&data, static_cast<size_t>(bytes), pool_, stream_);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears it, or the next launch check would report it
    return nullptr;
  }
  check(status, "cudaMallocFromPoolAsync");
  MR_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return data;
}

void MemoryPool::free(void* data) noexcept {
  cudaDeviceSynchronize();
  cudaFreeAsync(data, stream_);
}

int64_t MemoryPool::idle_bytes() const {
  uint64_t reserved = 0, used = 0;
  MR_CUDA_CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
  MR_CUDA_CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used));
  return static_cast<int64_t>(reserved - used);
}

void MemoryPool::release_idle() {
  MR_CUDA_CHECK(cudaMemPoolTrimTo(pool_, 0));
}

}  // namespace millrace::kernels::cuda
