// SPDX-License-Identifier: Apache-2.0
// The inner part of CPU attention: one row tile of one head over the keys it attends to. It needs
// the widest vectors of the machine to be fast, so it is compiled once per instruction set
// (attention_<level>.cc) and chosen at run time.
#pragma once

#include <cstdint>
#include <limits>

#include "common/dtype.h"
#include "kernels/cpu/runtime/simd_level.h"
#include "kernels/index/coverage.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cpu {

inline constexpr int32_t kMaxHeadDim = 256;
inline constexpr int32_t kHeadDimStep = 16;  // head_dim is a multiple: a 512-bit vector of float32

// Up to kTileRows queries and the keys they share. Key k is hidden from row r if k > position + r,
// and with a window if k <= position + r - window.
struct AttentionTile {
  const void* q = nullptr;          // [num_rows, head_dim], rows row_stride elements apart
  DType q_dtype = DType::kFloat32;  // of q and out
  int64_t row_stride = 0;           // of q and out
  int64_t num_rows = 0;
  int64_t position = 0;
  int64_t window = 0;  // 0: none
  float scale = 0;
  float sink = -std::numeric_limits<float>::infinity();  // AttentionParams::sinks

  const void* k = nullptr;  // [tokens, head_dim], contiguous, of the kv head
  const void* v = nullptr;  // [tokens, head_dim]
  DType kv_dtype = DType::kFloat32;
  int32_t head_dim = 0;

  const KeyRange* ranges = nullptr;  // [num_ranges] disjoint from each other and the columns
  int64_t num_ranges = 0;
  const int32_t* columns = nullptr;  // [num_columns] ascending
  int64_t num_columns = 0;

  void* out = nullptr;   // as q; zeros where a row sees no key
  float* lse = nullptr;  // [num_rows] natural log, -inf where a row sees no key; or null
};

// Keys of one step of the online softmax: S of a block of rows (16 KiB in AVX-512) stays in the L1
// cache. 128 against 64: 1 to 3 % on dense, 3 to 6 % on sparse attention
// (docs/notebook/cpu-attention.md).
inline constexpr int64_t kStepKeys = 128;
// Most rows of one block of any instruction set, and most keys a score micro-kernel rounds up to.
inline constexpr int64_t kMaxBlockRows = 32;
inline constexpr int64_t kMaxKeyGroup = 16;

// Working memory of one thread. A "unit" is what one lane multiplies at once: a float32 or a pair
// of bfloat16.
struct alignas(64) AttentionScratch {
  float queries[kTileRows * kMaxHeadDim];  // units [row block][depth][row of block]
  float out[kTileRows * kMaxHeadDim];      // [row][head_dim], not yet divided by sum
  float keys[kStepKeys * kMaxHeadDim];     // gathered or converted K rows
  float values[kStepKeys * kMaxHeadDim];   // gathered or converted V rows, or pairs of V rows
  float scores[(kStepKeys + kMaxKeyGroup) * kMaxBlockRows];  // [key][row of block]
  float scaled_max[kTileRows];  // of the row so far, times scale * log2(e)
  float sum[kTileRows];         // of exp2(scaled score - scaled_max)
  float rescale[kMaxBlockRows];
};

using AttentionTileKernel = void(const AttentionTile& tile, AttentionScratch& scratch);

// Multiply float32; bfloat16 inputs are widened, and so are float16 K and V (queries are then
// float32).
AttentionTileKernel attention_tile_baseline;
#if defined(__x86_64__)
AttentionTileKernel attention_tile_avx2;
AttentionTileKernel attention_tile_avx512;
// Multiplies bfloat16 pairs and rounds the softmax weights to bfloat16: q and k, v in bfloat16
// only.
AttentionTileKernel attention_tile_avx512_bf16;
#endif

AttentionTileKernel* select_attention_tile(SimdLevel simd, DType q_dtype, DType kv_dtype);

}  // namespace millrace::kernels::cpu
