#include "kernels/cuda/memory_pool.h"

#include <cstdint>
#include <limits>

#include "kernels/cuda/check.h"

namespace millrace::kernels::cuda {

cudaMemPool_t make_memory_pool(int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {.type = cudaMemLocationTypeDevice, .id = device};
  cudaMemPool_t pool = nullptr;
  MR_CUDA_CHECK(cudaMemPoolCreate(&pool, &properties));
  uint64_t keep_bytes = std::numeric_limits<uint64_t>::max();
  MR_CUDA_CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_bytes));
  return pool;
}

}  // namespace millrace::kernels::cuda
