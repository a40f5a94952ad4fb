// A stream of its own for copies, which waits for the operations' stream where it is told to.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/copy_lane.h"
#include "kernels/cuda/runtime/stream.h"

namespace millrace::kernels::cuda {

class CudaCopyLane final : public CopyLane {
 public:
  // On GPU `device`; `operations` is that of its CudaDevice and outlives the lane.
  CudaCopyLane(int device, cudaStream_t operations);
  ~CudaCopyLane() override;

  void follow() override;
  void copy_rows(const CopyRowsParams& params) override;
  Result<void> synchronize(Deadline deadline) override;

 private:
  int device_;
  cudaStream_t operations_;
  Stream stream_;
  cudaEvent_t done_ = nullptr;  // operations to follow
};

}  // namespace millrace::kernels::cuda
