// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_copy_lane.h"

#include <new>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/copy_rows_async.h"
#include "kernels/cuda/sm90/rows/gather_pages.h"
#include "kernels/cuda/sm90/rows/scatter_pages.h"

namespace millrace::kernels::cuda {

namespace {

constexpr int32_t kNoPage = -1;

}  // namespace

CudaCopyLane::CudaCopyLane(int device, cudaStream_t operations, cudaStream_t gathers,
                           const LockedMemory& locked)
    : device_(device), operations_(operations), gathers_(gathers), locked_(locked) {
  MR_CUDA_CHECK(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming));
  MR_CUDA_CHECK(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
  void* damaged = nullptr;
  MR_CUDA_CHECK(cudaMallocHost(&damaged, sizeof(*damaged_)));
  damaged_ = new (damaged) int32_t{kNoPage};
}

CudaCopyLane::~CudaCopyLane() {
  cudaEventDestroy(done_);
  cudaEventDestroy(reached_);
  cudaFreeHost(damaged_);
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

void CudaCopyLane::gather_pages(const GatherPagesParams& params) {
  MR_CUDA_CHECK(cudaSetDevice(device_));
  *damaged_ = kNoPage;
  MR_CUDA_CHECK(cudaEventRecord(reached_, stream_.get()));
  MR_CUDA_CHECK(cudaStreamWaitEvent(gathers_, reached_, 0));
  cuda::gather_pages(params, damaged_, gathers_);
  MR_CUDA_CHECK(cudaEventRecord(reached_, gathers_));
  MR_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), reached_, 0));
}

void CudaCopyLane::scatter_pages(const ScatterPagesParams& params) {
  MR_CUDA_CHECK(cudaSetDevice(device_));
  cuda::scatter_pages(params, stream_.get());
}

std::optional<int64_t> CudaCopyLane::damaged_page() const {
  if (*damaged_ == kNoPage) return std::nullopt;
  return *damaged_;
}

Result<void> CudaCopyLane::synchronize(Deadline deadline) {
  MR_CUDA_CHECK(cudaSetDevice(device_));
  return stream_.synchronize(deadline);
}

}  // namespace millrace::kernels::cuda
