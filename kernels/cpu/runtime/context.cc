// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/runtime/context.h"

#include "kernels/cpu/runtime/matmul_cache.h"

namespace millrace::kernels::cpu {
namespace {

// Weights are widened for every product, which does not pay off for fewer rows. A weight of 6144 x
// 4096 took 6 ms as bfloat16 and 13 ms widened for 1 row, 16 and 24 ms for 16, and 25 and 29 ms for
// 32; one of 768 x 256 took 0.31 and 0.22 ms for 64 (docs/notebook/cpu-bfloat16.md).
constexpr int64_t kMinWidenedRows = 48;

}  // namespace

Context fastest_context(int num_threads) {
  Context context = {.num_threads = num_threads, .simd = fastest_simd()};
  if (detect_simd() < SimdLevel::kAvx512Bf16) return context;
  if (multiplies_in_tiles()) {
    context.widened_rows = kNeverWidened;
  } else if (context.simd < SimdLevel::kAvx512Bf16) {
    context.widened_rows = kMinWidenedRows;
  }
  return context;
}

}  // namespace millrace::kernels::cpu
