// One order of execution on a GPU, and the wait for its end.
#pragma once

#include <cuda_runtime_api.h>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::kernels::cuda {

class Stream {
 public:
  // kHigh: its kernels take multiprocessors as they become free, before those of other streams.
  enum class Priority { kNormal, kHigh };
  explicit Stream(Priority priority = Priority::kNormal);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  cudaStream_t get() const { return stream_; }
  // Waits for everything enqueued so far. kDeadlineExceeded leaves the work running; a failed
  // kernel throws CudaError.
  Result<void> synchronize(Deadline deadline);

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t reached_ = nullptr;
};

}  // namespace millrace::kernels::cuda
