#include "kernels/cuda/runtime/cuda_copy_lane.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/copy_rows_async.h"

namespace millrace::kernels::cuda {

CudaCopyLane::CudaCopyLane(int device, cudaStream_t operations)
    : device_(device), operations_(operations) {
  MR_CUDA_CHECK(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
}

CudaCopyLane::~CudaCopyLane() {
  cudaEventDestroy(done_);
}

void CudaCopyLane::follow() {
  MR_CUDA_CHECK(cudaSetDevice(device_));
  MR_CUDA_CHECK(cudaEventRecord(done_, operations_));
  MR_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), done_, 0));
}

void CudaCopyLane::copy_rows(const CopyRowsParams& params) {
  MR_CUDA_CHECK(cudaSetDevice(device_));
  copy_rows_async(params, stream_.get());
}

Result<void> CudaCopyLane::synchronize(Deadline deadline) {
  MR_CUDA_CHECK(cudaSetDevice(device_));
  return stream_.synchronize(deadline);
}

}  // namespace millrace::kernels::cuda
