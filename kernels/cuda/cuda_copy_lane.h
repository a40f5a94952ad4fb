// A stream of its own for copies, which waits for the operations' stream where it is told to. Pages are
// gathered in a stream that lanes share, so that one gather begins as another ends and few run at once.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/copy_lane.h"
#include "kernels/cuda/runtime/locked_memory.h"
#include "kernels/cuda/runtime/stream.h"

namespace millrace::kernels::cuda {

class CudaCopyLane final : public CopyLane {
 public:
  // On GPU `device`; the streams and `locked` are those of its CudaDevice and outlive the lane.
  CudaCopyLane(int device, cudaStream_t operations, cudaStream_t gathers,
               const LockedMemory& locked);
  ~CudaCopyLane() override;

  void follow() override;
  void copy_rows(const CopyRowsParams& params) override;
  bool reaches(std::span<const std::byte> bytes) const override { return locked_.contains(bytes); }
  void gather_pages(const GatherPagesParams& params) override;
  Result<void> synchronize(Deadline deadline) override;
  std::optional<int64_t> damaged_page() const override;

 private:
  int device_;
  cudaStream_t operations_;
  cudaStream_t gathers_;
  const LockedMemory& locked_;
  Stream stream_;
  cudaEvent_t done_ = nullptr;     // operations to follow
  cudaEvent_t reached_ = nullptr;  // by stream_, for gathers_, or the other way
  int32_t* damaged_ = nullptr;     // page-locked; a page of the last gather, or kNoPage
};

}  // namespace millrace::kernels::cuda
