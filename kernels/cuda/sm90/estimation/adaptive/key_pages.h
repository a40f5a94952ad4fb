// SPDX-License-Identifier: Apache-2.0
// Keys as the adaptive pattern reads them (AdaptiveParams): for each page the mean, the difference of each key from
// it, and the mean square of these differences by channel; for each span the same without keys. A mean has steps
// of its own, so an offset that all keys of a page share, such as a bias of K, does not coarsen the keys' steps.
//
// If a page holds a value that is NaN or infinite, a step of it is NaN, and so are its masses and estimates.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/api/estimation.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {

// The place of a page's (or span's) vectors among those of its kv head. Vectors are permuted within groups of eight, so
// that of the 16 columns of a product that a thread gets (ScoreLayout::key), number i is page 4 i + lane % 4.
__host__ __device__ inline int64_t centre_place(int64_t page) {
  return (page & ~int64_t{7}) | (page & 3) << 1 | (page >> 2 & 1);
}

struct VectorSteps {
  float centre = 0;  // C_P
  float keys = 0;    // t_P
};

// Two vectors for each page, or for each span, of some kv heads. Device memory.
struct KeyMoments {
  int64_t count = 0;  // of a kv head
  // [num_kv_heads, num_places(), head_dim], number P at centre_place(P).
  int8_t* centres = nullptr;     // columns at scan_column()
  __half* spreads = nullptr;     // columns in order: v_P
  VectorSteps* steps = nullptr;  // [num_kv_heads, num_places()] by number

  // Places without a page have steps of zero and vectors that are not written.
  __host__ __device__ int64_t num_places() const {
    return (count + kGroupPages - 1) / kGroupPages * kGroupPages;
  }
};

struct KeyPages {
  int8_t* keys =
      nullptr;  // [num_kv_heads, pages.count * kPageTokens, head_dim]; keys that the last page lacks are
                // zeros
  KeyMoments pages;
  KeyMoments spans;
};

// The number of whole spans among the first `num_pages` pages.
__host__ __device__ inline int64_t whole_spans(int64_t num_pages) {
  return num_pages > 1 ? (num_pages - 1) / kSpanPages : 0;
}

// Fills in kv heads [first_kv_head, first_kv_head + num_kv_heads).
void launch_key_pages(const KvSlab& kv, int32_t first_kv_head, int32_t num_kv_heads,
                      const KeyPages& pages, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
