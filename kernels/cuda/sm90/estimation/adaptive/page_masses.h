// SPDX-License-Identifier: Apache-2.0
// Masses of pages for sampled rows as the kernels of the adaptive pattern hand them on: logarithms in whole steps
// (AdaptiveParams), kMassStepsPerOctave to an octave. They depend only on the row and on the page, so ranks that own
// other tiles get the same bits.
#pragma once

#include <cstdint>

#include "kernels/api/estimation.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {

// Steps are clamped to +-kLargestSteps, 4,000 octaves. kNotANumber stands for a mass that is NaN.
using MassSteps = int16_t;
inline constexpr int32_t kLargestSteps = 32000;
inline constexpr MassSteps kNotANumber = 32767;

// The mass of a row's kept pages: `sum` in units of 2^(steps / kMassStepsPerOctave), the largest of them. NaN if one
// is.
struct KeptMass {
  float steps = 0;
  float sum = 0;
};

// Pages that are scanned for sampled rows, as bits: by unit of kUnitRows rows, a bit for each row; and by row, a bit
// for each page of a group. Device memory.
struct ScannedPages {
  uint64_t* of_units = nullptr;  // [num_heads, num_units, page_stride]
  uint64_t* of_rows = nullptr;   // [num_heads, num_rows, page_stride / kGroupPages]
};

#ifdef __CUDACC__
// Steps of scale8 (row_step (C_P centre + t_P largest)), rounded as every device rounds them.
__device__ inline MassSteps mass_steps(float row_scale8, float centre_step, int32_t centre,
                                       float key_step, int32_t largest) {
  const float score = __fadd_rn(__fmul_rn(centre_step, static_cast<float>(centre)),
                                __fmul_rn(key_step, static_cast<float>(largest)));
  const float steps = rintf(__fmul_rn(score, row_scale8));
  constexpr auto kBound = static_cast<float>(kLargestSteps);
  return isnan(steps) ? kNotANumber : static_cast<MassSteps>(fminf(fmaxf(steps, -kBound), kBound));
}
#endif

// The far pages of a row that sees `causal_pages`: [1, far_end()).
#ifdef __CUDACC__
__host__ __device__
#endif
    inline constexpr int32_t
    far_end(int32_t causal_pages) {
  return causal_pages - 2;
}

}  // namespace millrace::kernels::cuda
