// SPDX-License-Identifier: Apache-2.0
// The inner loops of estimation, compiled once per instruction set from estimation_kernels_impl.h.
// Each runs on one thread.
//
// Every sum has a fixed order: products are summed along d one by one, sums over rows have sixteen
// partial sums. So AVX2 and AVX-512 machines choose bitwise the same index; only the baseline,
// which has no fused multiply-add, may round differently.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/simd_level.h"

namespace millrace::kernels::cpu {

// Columns of a panel: two vectors of AVX-512 (kernels/cpu/estimation/panel_matrix.h).
inline constexpr int64_t kPanelColumns = 32;

// Row lanes of a score tile, [num_keys, kScoreRows]: the last rows of a prompt, padded to
// kLastRows.
inline constexpr int64_t kScoreRows = 64;

// What the estimates of one sampled row are made of, for pages or for spans of pages: AdaptiveParams has the
// definition.
struct MassEstimates {
  const float* centre_products = nullptr;  // [num_groups] q8_r c8_P
  const float* spread_products = nullptr;  // [num_groups] sum over d of q8_r[d]^2 v_P[d]
  const float* centre_steps = nullptr;     // [num_groups] C_P
  const float* steps = nullptr;            // [num_groups] t_P
  float factor = 0;                        // scale log2(e) s_r
  float deviations = 0;                    // filter_deviations()
  float log2_pages = 0;                    // of each group
};

// The sum over i of 2^values[i] is sum * 2^maximum.
struct PowerSum {
  float maximum = 0;
  float sum = 0;
};

struct EstimationKernels {
  // out[r * out_stride + c] = sum over d of rows[r, d] * column c's element d, for all columns of
  // `num_panels` panels. rows is [num_rows, dim].
  void (*multiply)(const float* rows, int64_t num_rows, int64_t dim, const float* panels,
                   int64_t num_panels, float* out, int64_t out_stride);

  // For each row lane: updates the running maximum, and the sum of exp(score - maximum), with one
  // more tile of keys.
  void (*accumulate_softmax)(const float* scores, int64_t num_keys, float* maximum, double* sum);
  // scores[k, r] = exp(scores[k, r] - lse[r]); 0 where the score is -inf or lse is +inf.
  void (*probabilities)(float* scores, int64_t num_keys, const float* lse);
  // out[k] = sum over r of p[k, r]
  void (*sum_rows)(const float* p, int64_t num_keys, float* out);
  // diagonals[num_keys - 1 - k + r] += p[k, r]
  void (*sum_diagonals)(const float* p, int64_t num_keys, float* diagonals);

  // log2_masses[i] = log2 of the estimate of group first + i, for `count` groups.
  void (*estimates)(const MassEstimates& row, int64_t first, int64_t count, float* log2_masses);
  // count >= 1. The sum is NaN if a value is.
  PowerSum (*sum_of_powers)(const float* values, int64_t count);
  // groups[g] |= bit for the groups g in [first, first + count) with an estimate that is not below
  // 2^log2_threshold.
  void (*mark)(const MassEstimates& row, int64_t first, int64_t count, float log2_threshold,
               uint32_t bit, uint32_t* groups);
  // masses[p] = 2^((masses[p] - their maximum) / kMassStepsPerOctave), in place. NaN stays NaN.
  void (*masses)(float* masses, int64_t num_pages);

  // mean[i] = mean over the rows of rows[r, i]; num_rows >= 1.
  void (*mean)(const float* rows, int64_t num_rows, int64_t dim, float* mean);
};

const EstimationKernels& estimation_kernels(SimdLevel level);

extern const EstimationKernels kEstimationKernelsBaseline;
extern const EstimationKernels kEstimationKernelsAvx2;
extern const EstimationKernels kEstimationKernelsAvx512;

}  // namespace millrace::kernels::cpu
