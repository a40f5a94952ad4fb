// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/scratch.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/upload_ring.h"

namespace millrace::kernels::cuda {

Scratch::~Scratch() {
  for (void* block : blocks_) cudaFreeAsync(block, stream_);
}

void* Scratch::allocate_bytes(int64_t bytes) {
  if (bytes == 0) return nullptr;
  void* block = nullptr;
  MR_CUDA_CHECK(cudaMallocFromPoolAsync(&block, static_cast<size_t>(bytes), pool_, stream_));
  blocks_.push_back(block);
  return block;
}

void Scratch::upload_bytes(void* device, const void* source, int64_t bytes) {
  ring_.upload(device, source, bytes);
}

}  // namespace millrace::kernels::cuda
