// What a scan says of a row's pages: their masses, as logarithms in a byte, a group of pages at a
// time. A row's masses span more than a float does, and its largest is not known before all are: so
// they are relative to the largest of their group. That depends only on the row and on the pages it
// may see, so that ranks that own other tiles agree bit by bit.
#pragma once

#include <cstdint>

#include "kernels/api/estimation.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {

// kMassStepsPerOctave to an octave, kLargestMass for the largest of a group; 0 is no mass. What
// lies 2^-31 below its group's largest is none.
inline constexpr int kLargestMass = 254;  // even: page_scan.cu rounds halves to even

// What a row has in one group of pages. Pages that the tile keeps anyway (AdaptiveParams) count
// apart, lest they drown the others, and are 0 among the bytes.
struct alignas(16) MassGroup {
  int32_t exponent = 0;       // of kLargestMass, in steps; kNoNumber where a mass is none
  float far = 0;              // the sum over the pages that are not kept, in units of the largest
  int32_t kept_exponent = 0;  // of the largest mass of a kept page; low where none is
  float kept = 0;             // the sum over the kept pages, in units of that
};
inline constexpr int32_t kNoNumber = 0x7FFFFFFF;

// Pages that a tile of so many causal pages keeps: the first, the diagonal and the one before.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline constexpr bool
    is_kept(int32_t page, int32_t causal_pages) {
  return page == 0 || page >= causal_pages - 2;
}

}  // namespace millrace::kernels::cuda
