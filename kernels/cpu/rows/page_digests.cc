// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/units.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_ranges.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cpu {

void page_digests(const PageDigestParams& params, const Context& context) {
  const RowKernels& kernels = row_kernels(context.simd);
  const int64_t dim = params.head_dim;
  const int64_t num_pages = ceil_div(params.num_tokens, kPageTokens);
  parallel_ranges(num_pages, context.num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t page = begin; page < end; ++page) {
      const int64_t first = page * kPageTokens;
      const int64_t num_rows = std::min(kPageTokens, params.num_tokens - first);
      float* min = params.min + page * dim;
      float* max = params.max + page * dim;
      float* radius = params.radius + page * dim;
      switch (params.dtype) {
        case DType::kFloat32:
          kernels.digest_f32(static_cast<const float*>(params.k) + first * dim, num_rows, dim, min,
                             max, radius);
          break;
        case DType::kBFloat16:
          kernels.digest_bf16(static_cast<const BFloat16*>(params.k) + first * dim, num_rows, dim,
                              min, max, radius);
          break;
        case DType::kFloat16:
          kernels.digest_f16(static_cast<const Float16*>(params.k) + first * dim, num_rows, dim,
                             min, max, radius);
          break;
      }
    }
  });
}

}  // namespace millrace::kernels::cpu
