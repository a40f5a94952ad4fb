// SPDX-License-Identifier: Apache-2.0
// Page digests: a block per page, a thread per column (kernels/api/digest.h).
#include <cstdint>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/estimation/page_digests.h"
#include "kernels/cuda/sm90/rows/element.cuh"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cuda {
namespace {

// The page is read twice, the second time from the cache.
template <typename Element>
__global__ void page_digest_kernel(const PageDigestParams params) {
  const int64_t page = blockIdx.x;
  const int64_t first = page * kPageTokens;
  const auto num_rows = static_cast<int>(min(kPageTokens, params.num_tokens - first));
  for (int column = static_cast<int>(threadIdx.x); column < params.head_dim;
       column += static_cast<int>(blockDim.x)) {
    const Element* k = static_cast<const Element*>(params.k) + first * params.head_dim + column;
    const auto key = [&](int row) { return widen(k[int64_t{row} * params.head_dim]); };
    float lowest = key(0);
    float highest = lowest;
#pragma unroll 8
    for (int row = 1; row < num_rows; ++row) {
      lowest = fminf(lowest, key(row));
      highest = fmaxf(highest, key(row));
    }
    const float centre = (lowest + highest) / 2;
    float sum = 0;
#pragma unroll 8
    for (int row = 0; row < num_rows; ++row) sum += fabsf(key(row) - centre);
    const int64_t at = page * params.head_dim + column;
    params.min[at] = lowest;
    params.max[at] = highest;
    params.radius[at] = sum / static_cast<float>(num_rows);
  }
}

}  // namespace

void launch_page_digests(const PageDigestParams& params, cudaStream_t stream) {
  const auto num_pages = static_cast<unsigned>((params.num_tokens + kPageTokens - 1) / kPageTokens);
  const int num_threads = params.head_dim <= 64 ? 64 : 128;
  dispatch_dtype(params.dtype, [&]<typename Element>(Element) {
    page_digest_kernel<Element><<<num_pages, num_threads, 0, stream>>>(params);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
