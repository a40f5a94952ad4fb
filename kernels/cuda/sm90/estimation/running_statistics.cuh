// Softmax statistics of the two rows of a thread, over tiles of scores as they come.
#pragma once

#include <cfloat>

#include "kernels/cuda/sm90/estimation/tile_products.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {

// Of one row within one chunk, in powers of two: sum = sum of 2^(score - maximum).
struct RowStatistics {
  float maximum;
  float sum;
};

// One of a thread's two rows, over the keys it has seen.
class RunningStatistics {
 public:
  // Elements e of `scores` with e / 2 % 2 == half are the row's.
  __device__ void add(const float (&scores)[kScoresPerThread], int half) {
    float tile_maximum = scores[2 * half];
#pragma unroll
    for (int j = 0; j < kScoresPerThread / 4; ++j) {
      tile_maximum =
          fmaxf(tile_maximum, fmaxf(scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]));
    }
    const float maximum = fmaxf(value_.maximum, tile_maximum);
    float sum = value_.sum * ptx::exp2_approx(value_.maximum - maximum);
#pragma unroll
    for (int j = 0; j < kScoresPerThread / 4; ++j) {
      sum += ptx::exp2_approx(scores[4 * j + 2 * half] - maximum);
      sum += ptx::exp2_approx(scores[4 * j + 2 * half + 1] - maximum);
    }
    value_ = {maximum, sum};
  }

  // Of the four threads that share the row.
  __device__ RowStatistics merged() const {
    RowStatistics merged = value_;
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
      const float other_maximum = __shfl_xor_sync(~0u, merged.maximum, distance);
      const float other_sum = __shfl_xor_sync(~0u, merged.sum, distance);
      const float maximum = fmaxf(merged.maximum, other_maximum);
      merged.sum = merged.sum * ptx::exp2_approx(merged.maximum - maximum) +
                   other_sum * ptx::exp2_approx(other_maximum - maximum);
      merged.maximum = maximum;
    }
    return merged;
  }

 private:
  // Not -inf: a row that sees no key of the chunk must not meet inf - inf.
  RowStatistics value_ = {-FLT_MAX, 0};
};

}  // namespace millrace::kernels::cuda
