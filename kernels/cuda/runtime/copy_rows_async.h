// SPDX-License-Identifier: Apache-2.0
// A strided copy in the order of a stream.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/copy_rows.h"
#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {

inline void copy_rows_async(const CopyRowsParams& params, cudaStream_t stream) {
  if (params.num_rows == 0 || params.row_bytes == 0) return;
  MR_CUDA_CHECK(cudaMemcpy2DAsync(
      params.destination, static_cast<size_t>(params.destination_stride_bytes), params.source,
      static_cast<size_t>(params.source_stride_bytes), static_cast<size_t>(params.row_bytes),
      static_cast<size_t>(params.num_rows), cudaMemcpyDefault, stream));
}

}  // namespace millrace::kernels::cuda
