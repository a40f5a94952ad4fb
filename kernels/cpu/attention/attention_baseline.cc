// SPDX-License-Identifier: Apache-2.0
// 128-bit vectors: SSE2 on x86-64, NEON on AArch64. 16 registers hold 4 x 2 sums.
#define MR_VECTOR_BYTES 16
#define MR_KEY_GROUP 4
#define MR_ROW_GROUP 4
#include "kernels/cpu/attention/attention_kernel_impl.h"

namespace millrace::kernels::cpu {

void attention_tile_baseline(const AttentionTile& tile, AttentionScratch& scratch) {
  TileKernel<Float32Products>(tile, scratch).run();
}

}  // namespace millrace::kernels::cpu
