// SPDX-License-Identifier: Apache-2.0
// Owns a CUDA stream, and waits for it with a deadline.
#pragma once

#include <cuda_runtime_api.h>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::kernels::cuda {

class Stream {
 public:
  // kHigh: its kernels get multiprocessors that become free before kernels of other streams do.
  enum class Priority { kNormal, kHigh };
  explicit Stream(Priority priority = Priority::kNormal);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  cudaStream_t get() const { return stream_; }
  // Waits for everything enqueued so far. After kDeadlineExceeded the work is still running; a
  // failed kernel throws CudaError.
  Result<void> synchronize(Deadline deadline);

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t reached_ = nullptr;
};

}  // namespace millrace::kernels::cuda
