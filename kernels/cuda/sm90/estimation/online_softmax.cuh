// SPDX-License-Identifier: Apache-2.0
// Softmax statistics of the two rows of a thread, accumulated over tiles of scores.
#pragma once

#include <cfloat>

#include "kernels/cuda/sm90/estimation/tile_products.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {

// The statistics of one row within one chunk, in powers of two: row_sum = sum of 2^(score -
// row_max).
struct SoftmaxStatistics {
  float row_max;
  float row_sum;
};

// One of a thread's two rows, over the keys it has seen.
class OnlineSoftmax {
 public:
  // Elements e of `scores` with e / 2 % 2 == half belong to the row.
  __device__ void add(const float (&scores)[kScoresPerThread], int half) {
    float tile_max = scores[2 * half];
#pragma unroll
    for (int j = 0; j < kScoresPerThread / 4; ++j) {
      tile_max = fmaxf(tile_max, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
    }
    const float row_max = fmaxf(value_.row_max, tile_max);
    float sum = value_.row_sum * ptx::exp2_approx(value_.row_max - row_max);
#pragma unroll
    for (int j = 0; j < kScoresPerThread / 4; ++j) {
      sum += ptx::exp2_approx(scores[4 * j + 2 * half] - row_max);
      sum += ptx::exp2_approx(scores[4 * j + 2 * half + 1] - row_max);
    }
    value_ = {row_max, sum};
  }

  // Merged over the four threads that share the row.
  __device__ SoftmaxStatistics merged() const {
    SoftmaxStatistics merged = value_;
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
      const float other_max = __shfl_xor_sync(~0u, merged.row_max, distance);
      const float other_sum = __shfl_xor_sync(~0u, merged.row_sum, distance);
      const float row_max = fmaxf(merged.row_max, other_max);
      merged.row_sum = merged.row_sum * ptx::exp2_approx(merged.row_max - row_max) +
                       other_sum * ptx::exp2_approx(other_max - row_max);
      merged.row_max = row_max;
    }
    return merged;
  }

 private:
  // Not -inf, which would give inf - inf for a row that sees no key of the chunk.
  SoftmaxStatistics value_ = {-FLT_MAX, 0};
};

}  // namespace millrace::kernels::cuda
