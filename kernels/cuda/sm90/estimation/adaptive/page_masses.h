// SPDX-License-Identifier: Apache-2.0
// The result of a scan: the masses of a row's pages, as logarithms of one byte, for one group of
// pages at a time. The masses of a row span more than the range of a float, and its largest is
// known only at the end, so they are relative to the largest of their group. That depends only on
// the row and on the pages it may see, so ranks that own other tiles get the same bits.
#pragma once

#include <cstdint>

#include "kernels/api/estimation.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {

// There are kMassStepsPerOctave steps to an octave; the largest mass of a group is kLargestMass,
// and 0 is no mass. A mass of 2^-31 of its group's largest, or less, counts as none.
inline constexpr int kLargestMass = 254;  // even: page_scan.cu rounds halves to even

// The masses of a row in one group of pages. Pages that the tile keeps anyway (AdaptiveParams) are
// summed separately, so that they do not drown the others, and their bytes are 0.
struct alignas(16) MassGroup {
  int32_t exponent = 0;       // of kLargestMass, in steps; kNoNumber if a mass is NaN
  float far = 0;              // sum over the pages that are not kept, in units of the largest
  int32_t kept_exponent = 0;  // of the largest mass of a kept page; very low if there is none
  float kept = 0;             // sum over the kept pages, in units of that mass
};
inline constexpr int32_t kNoNumber = 0x7FFFFFFF;

// Whether a tile with `causal_pages` pages keeps this one: the first, the diagonal and the one
// before it.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline constexpr bool
    is_kept(int32_t page, int32_t causal_pages) {
  return page == 0 || page >= causal_pages - 2;
}

}  // namespace millrace::kernels::cuda
