// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/stream.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/event_wait.h"

namespace millrace::kernels::cuda {

Stream::Stream(Priority priority) {
  int least = 0, greatest = 0;
  MR_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  MR_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                             priority == Priority::kHigh ? greatest : least));
  MR_CUDA_CHECK(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming));
}

Stream::~Stream() {
  cudaStreamSynchronize(stream_);
  cudaEventDestroy(reached_);
  cudaStreamDestroy(stream_);
}

Result<void> Stream::synchronize(Deadline deadline) {
  MR_CUDA_CHECK(cudaEventRecord(reached_, stream_));
  return wait_for_event(reached_, deadline);
}

}  // namespace millrace::kernels::cuda
