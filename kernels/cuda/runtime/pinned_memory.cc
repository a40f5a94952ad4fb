// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/pinned_memory.h"

#include <cuda_runtime_api.h>

#include <bit>

#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {

namespace {

constexpr int64_t kMaxKeptBytes = int64_t{4} << 20;

}  // namespace

PinnedMemory::~PinnedMemory() {
  for (const auto& [bytes, blocks] : kept_) {
    for (void* block : blocks) cudaFreeHost(block);
  }
}

void* PinnedMemory::allocate(int64_t bytes) {
  const bool keep = bytes <= kMaxKeptBytes;
  if (keep) {
    bytes = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
    if (auto& blocks = kept_[bytes]; !blocks.empty()) {
      void* block = blocks.back();
      blocks.pop_back();
      return block;
    }
  }
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "cudaMallocHost");
  if (keep) block_bytes_[data] = bytes;
  return data;
}

void PinnedMemory::free(void* data) noexcept {
  const auto block = block_bytes_.find(data);
  if (block == block_bytes_.end()) {
    cudaFreeHost(data);
    return;
  }
  cudaDeviceSynchronize();
  kept_[block->second].push_back(data);
}

}  // namespace millrace::kernels::cuda
