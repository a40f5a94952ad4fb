#include <algorithm>

#include "common/check.h"
#include "common/units.h"
#include "kernels/api/tiling.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/parallel_ranges.h"
#include "kernels/cpu/row_kernels.h"

namespace millrace::kernels::cpu {

void page_digests(const PageDigestParams& params, const Context& context) {
  MR_CHECK(params.dtype != DType::kFloat16, "page_digests of float16");
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
      if (params.dtype == DType::kFloat32) {
        const auto* k = static_cast<const float*>(params.k) + first * dim;
        kernels.digest_f32(k, num_rows, dim, min, max, radius);
      } else {
        const auto* k = static_cast<const BFloat16*>(params.k) + first * dim;
        kernels.digest_bf16(k, num_rows, dim, min, max, radius);
      }
    }
  });
}

}  // namespace millrace::kernels::cpu
