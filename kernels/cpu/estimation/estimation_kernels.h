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

// One sampled row of the adaptive pattern: AdaptiveParams has the definition.
struct PageScores {
  const float* products = nullptr;    // [num_pages] q_r c_P
  const int32_t* maxima = nullptr;    // [num_pages] of q8_r k8
  const float* page_steps = nullptr;  // [num_pages] t_P
  float row_step = 0;                 // s_r
  float scale = 0;
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

  // masses[p] = 2^(x[p] - max x), x[p] = scale (products[p] + row_step page_steps[p] maxima[p])
  // log2(e), rounded to 1 / kMassStepsPerOctave. NaN stays NaN.
  void (*masses)(const PageScores& scores, int64_t num_pages, float* masses);

  // mean[i] = mean over the rows of rows[r, i]; num_rows >= 1.
  void (*mean)(const float* rows, int64_t num_rows, int64_t dim, float* mean);
};

const EstimationKernels& estimation_kernels(SimdLevel level);

extern const EstimationKernels kEstimationKernelsBaseline;
extern const EstimationKernels kEstimationKernelsAvx2;
extern const EstimationKernels kEstimationKernelsAvx512;

}  // namespace millrace::kernels::cpu
