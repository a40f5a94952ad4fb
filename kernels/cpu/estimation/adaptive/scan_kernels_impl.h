// SPDX-License-Identifier: Apache-2.0
// Bodies of ScanKernels. Included only by scan_kernels_<level>.cc, which first define `Keys`, a
// vector of sums, one for each key, with
//   kCount              keys in a vector
//   start(sums)         the initial sums, given the sums of the keys' channels
//   add(keys, row)      adds the products of four channels; `row` has the channels of one row
//   larger(other)       the larger of both, key by key
//   store(out)
// and are compiled with that level's flags (CMakeLists.txt), without fused multiply-adds. As in
// row_kernels_impl.h, nothing here may call an inline function of another header.
#pragma once

#include "kernels/cpu/estimation/adaptive/scan_kernels.h"

namespace millrace::kernels::cpu {
namespace {

constexpr int64_t kVectors = kScanKeys / Keys::kCount;

inline int32_t four_channels(const int8_t* row) {
  int32_t bytes;
  __builtin_memcpy(&bytes, row, sizeof bytes);
  return bytes;
}

inline int32_t largest_of(const Keys& keys) {
  int32_t values[Keys::kCount];
  keys.store(values);
  int32_t largest = values[0];
  for (int64_t i = 1; i < Keys::kCount; ++i) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

// kRows rows times kWide vectors of keys: the sums stay in registers over all channels.
template <int kRows, int kWide>
inline void block_products(const int8_t* rows, const ScanPage& page, int64_t first_key,
                           Keys (&products)[kRows][kWide]) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) products[r][v].start(page.sums + first_key + v * Keys::kCount);
  }
  const int8_t* keys = page.keys + first_key * 4;
  for (int64_t d = 0; d < page.dim; d += 4, keys += kScanKeys * 4) {
    typename Keys::Loaded loaded[kWide];
#pragma GCC unroll 8
    for (int v = 0; v < kWide; ++v) loaded[v] = Keys::load(keys + v * Keys::kCount * 4);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto row = Keys::broadcast(four_channels(rows + r * page.dim + d));
#pragma GCC unroll 8
      for (int v = 0; v < kWide; ++v) products[r][v].add(loaded[v], row);
    }
  }
}

template <int kRows>
inline void block_maxima(const int8_t* rows, const ScanPage& page, int32_t* maxima,
                         int64_t stride) {
  constexpr int kWide = kVectors < Keys::kWide ? kVectors : Keys::kWide;
  Keys best[kRows] = {};
  for (int64_t key = 0; key < kScanKeys; key += kWide * Keys::kCount) {
    Keys products[kRows][kWide];
    block_products<kRows, kWide>(rows, page, key, products);
    for (int r = 0; r < kRows; ++r) {
      Keys largest = products[r][0];
      for (int v = 1; v < kWide; ++v) largest = largest.larger(products[r][v]);
      best[r] = key == 0 ? largest : best[r].larger(largest);
    }
  }
  for (int r = 0; r < kRows; ++r) maxima[r * stride] = largest_of(best[r]);
}

template <int kRows>
inline void maxima_of(const int8_t* rows, int64_t num_rows, const ScanPage& page, int32_t* maxima,
                      int64_t stride) {
  int64_t r = 0;
  for (; r + kRows <= num_rows; r += kRows) {
    block_maxima<kRows>(rows + r * page.dim, page, maxima + r * stride, stride);
  }
  if constexpr (kRows > 1) {
    maxima_of<kRows / 2>(rows + r * page.dim, num_rows - r, page, maxima + r * stride, stride);
  }
}

void maxima(const int8_t* rows, int64_t num_rows, const ScanPage& page, int32_t* out,
            int64_t stride) {
  maxima_of<Keys::kRows>(rows, num_rows, page, out, stride);
}

void products(const int8_t* row, const ScanPage& page, int32_t* out) {
  for (int64_t key = 0; key < kScanKeys; key += Keys::kCount) {
    Keys sums[1][1];
    block_products<1, 1>(row, page, key, sums);
    sums[0][0].store(out + key);
  }
}

void mass_steps(const ScannedPages& row, int64_t num_scanned, float* out) {
  const ScannedPages copy = row;  // which `out` cannot alias
  for (int64_t i = 0; i < num_scanned; ++i) {
    const int32_t page = copy.pages[i];
    const float of_centre = copy.centre_steps[page] * copy.centre_products[page];
    const float of_best_key = copy.steps[page] * static_cast<float>(copy.maxima[i]);
    out[i] = __builtin_rintf((of_centre + of_best_key) * copy.factor);
  }
}

constexpr ScanKernels kScanKernelsOfThisInstructionSet = {
    .maxima = maxima, .products = products, .mass_steps = mass_steps};

}  // namespace
}  // namespace millrace::kernels::cpu
