// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "common/units.h"
#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {

UploadRing::UploadRing(cudaStream_t stream) : stream_(stream) {
  MR_CUDA_CHECK(cudaMallocHost(reinterpret_cast<void**>(&pinned_), kNumChunks * kChunkBytes));
  for (cudaEvent_t& event : left_) {
    MR_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
}

UploadRing::~UploadRing() {
  cudaStreamSynchronize(stream_);  // copies may still read the ring
  for (cudaEvent_t event : left_) cudaEventDestroy(event);
  cudaFreeHost(pinned_);
}

void UploadRing::next_chunk() {
  MR_CUDA_CHECK(cudaEventRecord(left_[chunk_], stream_));
  chunk_ = (chunk_ + 1) % kNumChunks;
  MR_CUDA_CHECK(cudaEventSynchronize(left_[chunk_]));  // at once for an event never recorded
  used_bytes_ = 0;
}

void UploadRing::upload(void* device, const void* source, int64_t bytes) {
  // Sources start at multiples of a DMA-friendly size.
  constexpr int64_t kAlignmentBytes = 64;
  auto* to = static_cast<std::byte*>(device);
  const auto* from = static_cast<const std::byte*>(source);
  while (bytes > 0) {
    if (used_bytes_ == kChunkBytes) next_chunk();
    const int64_t part = std::min(bytes, kChunkBytes - used_bytes_);
    std::byte* staged = pinned_ + chunk_ * kChunkBytes + used_bytes_;
    std::memcpy(staged, from, static_cast<size_t>(part));
    MR_CUDA_CHECK(
        cudaMemcpyAsync(to, staged, static_cast<size_t>(part), cudaMemcpyHostToDevice, stream_));
    used_bytes_ = std::min(kChunkBytes, round_up(used_bytes_ + part, kAlignmentBytes));
    to += part;
    from += part;
    bytes -= part;
  }
}

}  // namespace millrace::kernels::cuda
