// The stream that collectives run in: its order against the device's operations, and how long it
// was busy with collectives.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <vector>

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

  // Around each collective. `busy_s` stays where it is, and grows by the seconds that it took once
  // it is done: at the next settle(), or when the queue comes to its events again.
  void begin(double& busy_s);
  void end();
  void settle() const;

 private:
  struct Span {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    double* busy_s = nullptr;
    bool running = false;
  };
  static Span make_span();
  // Counts it if it is done; whether it is free.
  static bool settle(Span& span);

  int gpu_;
  cudaStream_t operations_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t followed_ = nullptr;
  std::array<cudaEvent_t, kCollectiveMarksKept> marks_{};
  int64_t num_marks_ = 0;  // ever made
  // In turn. One more where the next is still running: as many as the host is ahead by, two layers of
  // collectives.
  mutable std::vector<Span> spans_;
  size_t next_span_ = 0;
};

}  // namespace millrace::comm::nccl
