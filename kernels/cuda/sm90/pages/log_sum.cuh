// SPDX-License-Identifier: Apache-2.0
// The log of a sum of exponentials, held as maximum and scaled sum. Partial sums merge in any
// order.
#pragma once

namespace millrace::kernels::cuda {

struct LogSum {
  float maximum = -INFINITY;
  float sum = 0;

  __device__ void add(float x) { merge({x, 1}); }
  __device__ void merge(const LogSum& other) {
    if (other.sum == 0 || other.maximum == -INFINITY) return;
    const float most = fmaxf(maximum, other.maximum);
    sum = sum * expf(maximum - most) + other.sum * expf(other.maximum - most);
    maximum = most;
  }
  __device__ float log() const { return sum == 0 ? -INFINITY : maximum + logf(sum); }

  // Over the lanes of a warp, all of which call it.
  __device__ LogSum over_warp() const {
    LogSum all = *this;
    for (int mask = 16; mask > 0; mask /= 2) {
      all.merge({__shfl_xor_sync(0xffffffffu, all.maximum, mask),
                 __shfl_xor_sync(0xffffffffu, all.sum, mask)});
    }
    return all;
  }
};

}  // namespace millrace::kernels::cuda
