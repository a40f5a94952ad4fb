// SPDX-License-Identifier: Apache-2.0
// The stream that collectives run in: orders it against the device's operations, and measures how
// long it was busy with collectives.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <vector>

#include "comm/api/device_communicator.h"

namespace millrace::comm {

// Throws CudaFailure if CUDA fails: the GPU's state is unknown then, and the rank must end.
class CollectiveQueue {
 public:
  CollectiveQueue(int gpu, cudaStream_t operations);
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;
  ~CollectiveQueue();

  cudaStream_t stream() const { return stream_; }
  // Directs the calling thread's CUDA calls to this queue's GPU.
  void use() const;

  void follow();
  CollectiveMark mark();
  void join(CollectiveMark mark);

  // Called around each collective. `busy_s` must stay where it is. It grows by the collective's
  // seconds once that is done: at the next settle(), or when the queue reuses its events.
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
  // Counts the span if it is done; returns whether it is free.
  static bool settle(Span& span);

  int gpu_;
  cudaStream_t operations_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t followed_ = nullptr;
  std::array<cudaEvent_t, kCollectiveMarksKept> marks_{};
  int64_t num_marks_ = 0;  // ever made
  // Used in turn. If the next one is still running, one is added: as many as the host runs ahead,
  // two layers of collectives.
  mutable std::vector<Span> spans_;
  size_t next_span_ = 0;
};

}  // namespace millrace::comm
