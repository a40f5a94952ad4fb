// SPDX-License-Identifier: Apache-2.0
// The inner loops of the adaptive pattern's scan: multiply rows with the keys of a page in int8, find the largest
// product of each row, and turn it into the page's mass. Compiled once per instruction set from
// scan_kernels_impl.h.
//
// Integer sums are exact, and no product of floats is fused with a sum, so all instruction sets, and GPUs, find
// the same masses.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/simd_level.h"

namespace millrace::kernels::cpu {

// Keys of a page (equals kPageTokens). They are stored in the order of the products: for every four
// channels, four bytes of each key, [dim / 4, kScanKeys, 4].
inline constexpr int64_t kScanKeys = 64;
inline constexpr int64_t kScanChannels = 4;

// The offset of channel d of a key within its page.
inline constexpr int64_t scan_offset(int64_t key, int64_t d) {
  return (d / kScanChannels * kScanKeys + key) * kScanChannels + d % kScanChannels;
}

// One page, to be multiplied with rows of [dim] int8; dim is a multiple of 4.
struct ScanPage {
  const int8_t* keys = nullptr;   // [dim / 4, kScanKeys, 4]
  const int32_t* sums = nullptr;  // [kScanKeys] of each key's channels
  int64_t dim = 0;
};

// The pages that were scanned for one row: AdaptiveParams has the definition of their masses.
struct ScannedPages {
  const int32_t* pages = nullptr;   // [num_scanned]
  const int32_t* maxima = nullptr;  // [num_scanned] of q8_r k8
  // Of all pages.
  const float* centre_products = nullptr;  // q8_r c8_P
  const float* centre_steps = nullptr;     // C_P
  const float* steps = nullptr;            // t_P
  float factor = 0;  // s_r times what turns a score into steps of 2^(1 / kMassStepsPerOctave)
};

struct ScanKernels {
  // maxima[r * stride] = max over all keys of the page of rows[r] . key
  void (*maxima)(const int8_t* rows, int64_t num_rows, const ScanPage& page, int32_t* maxima,
                 int64_t stride);
  // products[k] = row . key k of the page
  void (*products)(const int8_t* row, const ScanPage& page, int32_t* products);
  // mass_steps[i] = log2 of the mass of pages[i] in steps, rounded to a whole number, halves to even:
  // (C_P * (q8_r c8_P) + t_P * maximum) * factor, each operation rounded to float32.
  void (*mass_steps)(const ScannedPages& row, int64_t num_scanned, float* mass_steps);
};

const ScanKernels& scan_kernels(SimdLevel level);

extern const ScanKernels kScanKernelsBaseline;
extern const ScanKernels kScanKernelsAvx2;
extern const ScanKernels kScanKernelsAvx512;
extern const ScanKernels kScanKernelsAvx512Vnni;

}  // namespace millrace::kernels::cpu
