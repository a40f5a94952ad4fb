// Small host arrays on their way to the device: copied into pinned memory at once, so that the
// caller's array may go, and from there to the device in stream order.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::kernels::cuda {

// One stream, one thread. The pinned memory is a ring of chunks; before a chunk that comes round
// again is written, the host waits for the copies out of it, so it is ahead of the device by the
// ring's bytes at most.
class UploadRing {
 public:
  explicit UploadRing(cudaStream_t stream);
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;
  ~UploadRing();

  // Enqueues the copy of `bytes` from `source`, which is read before the call returns.
  void upload(void* device, const void* source, int64_t bytes);

 private:
  // Holds the row tiles of a million tokens, 384 KiB, with the arrays that go along. A longer array
  // goes in parts.
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
