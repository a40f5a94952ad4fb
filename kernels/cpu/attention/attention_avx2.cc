// SPDX-License-Identifier: Apache-2.0
// AVX2 and FMA: 16 registers hold 6 x 2 sums of the scores, 4 x 2 of the output.
#define MR_VECTOR_BYTES 32
#define MR_KEY_GROUP 6
#define MR_ROW_GROUP 4
#include "kernels/cpu/attention/attention_kernel_impl.h"

namespace millrace::kernels::cpu {

void attention_tile_avx2(const AttentionTile& tile, AttentionScratch& scratch) {
  TileKernel<Float32Products>(tile, scratch).run();
}

}  // namespace millrace::kernels::cpu
