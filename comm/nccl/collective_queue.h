// The stream that collectives run in: its order against the device's operations, and how long it
// was busy with collectives.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "comm/api/device_communicator.h"

namespace millrace::comm::nccl {

// Throws CudaFailure when CUDA fails: the GPU's state is unknown then, and the rank ends.
class CollectiveQueue {
 public:
  CollectiveQueue(int gpu, cudaStream_t operations);
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;
  ~CollectiveQueue();

  cudaStream_t stream() const { return stream_; }
  // The calling thread's CUDA calls are for this queue's GPU.
  void use() const;

  void follow();
  CollectiveMark mark();
  void join(CollectiveMark mark);

  // Around each collective.
  void begin();
  void end();
  // Seconds in which a collective ran, over those that are done.
  double busy_s() const;

 private:
  struct Stretch {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    bool running = false;
  };
  // The oldest is waited for when all are running. Two layers, which the host may be ahead, have
  // fewer up to 120 row tiles a rank (a million tokens): a tile has its K and V, or two sums.
  static constexpr size_t kStretches = 512;

  void settle(Stretch& stretch, bool wait) const;

  int gpu_;
  cudaStream_t operations_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t followed_ = nullptr;
  std::array<cudaEvent_t, kCollectiveMarksKept> marks_{};
  CollectiveMark next_mark_ = 0;
  mutable std::array<Stretch, kStretches> stretches_{};
  size_t next_stretch_ = 0;
  mutable double busy_s_ = 0;
};

}  // namespace millrace::comm::nccl
