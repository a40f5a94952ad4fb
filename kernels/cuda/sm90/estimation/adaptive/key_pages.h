// SPDX-License-Identifier: Apache-2.0
// Keys as a scan reads them: for each page the mean in float16, and the difference of each key from
// it in int8, in steps of the page's own (AdaptiveParams says how). So an offset that all keys of a
// page share, such as a bias of K, does not coarsen the steps.
//
// If a page holds a value that is NaN, infinite or too large for the mean, its step is NaN, and so
// are its masses.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {

// The place of a page's mean among those of its kv head. Means are permuted within groups of eight,
// so that of the 16 columns of a product that a thread gets (ScoreLayout::key), number i is page 4
// i + lane % 4.
__host__ __device__ inline int64_t centre_place(int64_t page) {
  return page / 8 * 8 + page % 4 * 2 + page / 4 % 2;
}

// For some kv heads. Device memory.
struct KeyPages {
  int64_t num_pages = 0;
  int8_t* keys = nullptr;     // [num_kv_heads, num_pages * kPageTokens, head_dim]; keys that the
                              // last page lacks are zeros
  __half* centres = nullptr;  // [num_kv_heads, num_places(), head_dim], page P at centre_place(P)
  float* steps = nullptr;     // [num_kv_heads, num_places()] by page, 0 where there is none

  // Centres of places without a page are not written.
  __host__ __device__ int64_t num_places() const {
    return (num_pages + kGroupPages - 1) / kGroupPages * kGroupPages;
  }
};

// Quantises kv heads [first_kv_head, first_kv_head + num_kv_heads).
void launch_key_pages(const KvSlab& kv, int32_t first_kv_head, int32_t num_kv_heads,
                      const KeyPages& pages, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
