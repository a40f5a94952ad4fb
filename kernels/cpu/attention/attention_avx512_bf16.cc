// SPDX-License-Identifier: Apache-2.0
// AVX-512 with bfloat16 dot products: 32 registers hold 8 x 2 sums.
#define MR_VECTOR_BYTES 64
#define MR_KEY_GROUP 8
#define MR_ROW_GROUP 8
#include "kernels/cpu/attention/attention_kernel_impl.h"

namespace millrace::kernels::cpu {

void attention_tile_avx512_bf16(const AttentionTile& tile, AttentionScratch& scratch) {
  TileKernel<BFloat16Products>(tile, scratch).run();
}

}  // namespace millrace::kernels::cpu
