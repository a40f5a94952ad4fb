// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention/attention_tile.h"

namespace millrace::kernels::cpu {

AttentionTileKernel* select_attention_tile([[maybe_unused]] SimdLevel simd,
                                           [[maybe_unused]] DType q_dtype,
                                           [[maybe_unused]] DType kv_dtype) {
#if defined(__x86_64__)
  const bool bfloat16 = q_dtype == DType::kBFloat16 && kv_dtype == DType::kBFloat16;
  if (simd >= SimdLevel::kAvx512Bf16 && bfloat16) return attention_tile_avx512_bf16;
  if (simd >= SimdLevel::kAvx512) return attention_tile_avx512;
  if (simd >= SimdLevel::kAvx2) return attention_tile_avx2;
#endif
  return attention_tile_baseline;
}

}  // namespace millrace::kernels::cpu
