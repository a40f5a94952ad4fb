// SPDX-License-Identifier: Apache-2.0
// Uploads small host arrays to the device. An array is copied into pinned memory at once, so that
// the caller may free it, and from there to the device in stream order.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::kernels::cuda {

// For one stream, used by one thread. The pinned memory is a ring of chunks. Before the host reuses
// a chunk, it waits for the copies out of it, so it is never ahead of the device by more than the
// ring's bytes.
class UploadRing {
 public:
  explicit UploadRing(cudaStream_t stream);
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;
  ~UploadRing();

  // Enqueues the copy of `bytes` from `source`, which is read before the call returns.
  void upload(void* device, const void* source, int64_t bytes);

 private:
  // Holds the row tiles of a million tokens (384 KiB) and the arrays uploaded with them. A longer
  // array is uploaded in parts.
  static constexpr int64_t kChunkBytes = 1 << 20;
  static constexpr int kNumChunks = 4;

  void next_chunk();

  cudaStream_t stream_;
  std::byte* pinned_ = nullptr;                 // [kNumChunks, kChunkBytes]
  std::array<cudaEvent_t, kNumChunks> left_{};  // when the copies out of a chunk are done
  int chunk_ = 0;
  int64_t used_bytes_ = 0;  // of chunk_
};

}  // namespace millrace::kernels::cuda
