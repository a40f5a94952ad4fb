// SPDX-License-Identifier: Apache-2.0
// CopyLane on a GPU: a stream for copies, which waits for the stream of operations only when told
// to. Pages are gathered in a stream that several lanes share, so that one gather begins when
// another ends and few run at once.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/copy_lane.h"
#include "kernels/cuda/runtime/locked_memory.h"
#include "kernels/cuda/runtime/stream.h"

namespace millrace::kernels::cuda {

class CudaCopyLane final : public CopyLane {
 public:
  // `device`: the number of the GPU. The streams and `locked` belong to its CudaDevice and outlive
  // the lane.
  CudaCopyLane(int device, cudaStream_t operations, cudaStream_t gathers,
               const LockedMemory& locked);
  ~CudaCopyLane() override;

  void follow() override;
  void copy_rows(const CopyRowsParams& params) override;
  bool reaches(std::span<const std::byte> bytes) const override { return locked_.contains(bytes); }
  void gather_pages(const GatherPagesParams& params) override;
  void scatter_pages(const ScatterPagesParams& params) override;
  Result<void> synchronize(Deadline deadline) override;
  std::optional<int64_t> damaged_page() const override;

 private:
  int device_;
  cudaStream_t operations_;
  cudaStream_t gathers_;
  const LockedMemory& locked_;
  Stream stream_;
  cudaEvent_t done_ = nullptr;     // the operations that follow() waits for
  cudaEvent_t reached_ = nullptr;  // by stream_, for gathers_ to wait for, or the reverse
  int32_t* damaged_ = nullptr;     // page-locked; a damaged page of the last gather, or kNoPage
};

}  // namespace millrace::kernels::cuda
