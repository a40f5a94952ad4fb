// SPDX-License-Identifier: Apache-2.0
// Bodies of EstimationKernels. Included only by estimation_kernels_<level>.cc, which define
// MR_VECTOR_BYTES and MR_BLOCK_ROWS and are compiled with that level's flags (CMakeLists.txt).
//
// As in row_kernels_impl.h, nothing here may call an inline function of another header: the linker
// would keep one copy of it, possibly the one compiled for AVX-512.
#pragma once

#include "kernels/api/estimation.h"
#include "kernels/cpu/estimation/estimation_kernels.h"

namespace millrace::kernels::cpu {
namespace {

typedef float Vec __attribute__((vector_size(MR_VECTOR_BYTES)));
constexpr int64_t kLanes = MR_VECTOR_BYTES / 4;

inline Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vec v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// kRows rows times two vectors of a panel's columns: 2 kRows sums stay in registers over all of d,
// enough of them to hide the latency of a fused multiply-add.
template <int kRows>
inline void multiply_block(const float* rows, int64_t dim, const float* panel, float* out,
                           int64_t out_stride) {
  Vec left[kRows] = {};
  Vec right[kRows] = {};
  for (int64_t d = 0; d < dim; ++d) {
    const Vec column_left = load(panel + d * kPanelColumns);
    const Vec column_right = load(panel + d * kPanelColumns + kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      left[r] += rows[r * dim + d] * column_left;
      right[r] += rows[r * dim + d] * column_right;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    store(out + r * out_stride, left[r]);
    store(out + r * out_stride + kLanes, right[r]);
  }
}

// The columns of one block of a panel for all rows; the panel's part stays in the first-level
// cache.
template <int kRows>
inline void multiply_rows(const float* rows, int64_t num_rows, int64_t dim, const float* panel,
                          float* out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + kRows <= num_rows; r += kRows) {
    multiply_block<kRows>(rows + r * dim, dim, panel, out + r * out_stride, out_stride);
  }
  if constexpr (kRows > 1) {
    multiply_rows<kRows / 2>(rows + r * dim, num_rows - r, dim, panel, out + r * out_stride,
                             out_stride);
  }
}

void multiply(const float* rows, int64_t num_rows, int64_t dim, const float* panels,
              int64_t num_panels, float* out, int64_t out_stride) {
  for (int64_t p = 0; p < num_panels; ++p) {
    for (int64_t c = 0; c < kPanelColumns; c += 2 * kLanes) {
      multiply_rows<MR_BLOCK_ROWS>(rows, num_rows, dim, panels + p * kPanelColumns * dim + c,
                                   out + p * kPanelColumns + c, out_stride);
    }
  }
}

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; Taylor to degree 7, off by less than
// 6e-9. 0 below -87, where 2^n stops being a normal float; not above exp(88), which is finite.
inline float exponential(float x) {
  constexpr float kSmallest = -87.0F;
  constexpr float kLargest = 88.0F;
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum.
  constexpr float kRound = 0x1.8p23F;
  float clamped = x < kSmallest ? kSmallest : x;
  clamped = clamped > kLargest ? kLargest : clamped;
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts; n times the first, of 9 bits, is exact.
  const float r = (clamped - n * 0x1.63p-1F) - n * -0x1.bd0106p-13F;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const uint32_t exponent = __builtin_bit_cast(uint32_t, shifted) + 127U;
  const float result = p * __builtin_bit_cast(float, exponent << 23);
  return x < kSmallest ? 0.0F : result;
}

constexpr int64_t kPartialSums = 16;

inline float fold(float* lanes) {
  for (int64_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

void accumulate_softmax(const float* scores, int64_t num_keys, float* maximum, double* sum) {
  float tile_maximum[kScoreRows];
  float tile_sum[kScoreRows] = {};
  for (int64_t r = 0; r < kScoreRows; ++r) tile_maximum[r] = maximum[r];
  for (int64_t k = 0; k < num_keys; ++k) {
    const float* score = scores + k * kScoreRows;
    for (int64_t r = 0; r < kScoreRows; ++r) {
      tile_maximum[r] = score[r] > tile_maximum[r] ? score[r] : tile_maximum[r];
    }
  }
  for (int64_t k = 0; k < num_keys; ++k) {
    const float* score = scores + k * kScoreRows;
    for (int64_t r = 0; r < kScoreRows; ++r) tile_sum[r] += exponential(score[r] - tile_maximum[r]);
  }
  for (int64_t r = 0; r < kScoreRows; ++r) {
    const float shrink = exponential(maximum[r] - tile_maximum[r]);
    sum[r] = sum[r] * static_cast<double>(shrink) + static_cast<double>(tile_sum[r]);
    maximum[r] = tile_maximum[r];
  }
}

void probabilities(float* scores, int64_t num_keys, const float* lse) {
  for (int64_t k = 0; k < num_keys; ++k) {
    float* score = scores + k * kScoreRows;
    for (int64_t r = 0; r < kScoreRows; ++r) score[r] = exponential(score[r] - lse[r]);
  }
}

void sum_rows(const float* p, int64_t num_keys, float* out) {
  for (int64_t k = 0; k < num_keys; ++k) {
    float lanes[kPartialSums] = {};
    for (int64_t r = 0; r < kScoreRows; r += kPartialSums) {
      for (int64_t l = 0; l < kPartialSums; ++l) lanes[l] += p[k * kScoreRows + r + l];
    }
    out[k] = fold(lanes);
  }
}

void sum_diagonals(const float* p, int64_t num_keys, float* diagonals) {
  for (int64_t k = 0; k < num_keys; ++k) {
    float* first = diagonals + (num_keys - 1 - k);
    for (int64_t r = 0; r < kScoreRows; ++r) first[r] += p[k * kScoreRows + r];
  }
}

// Ignores NaN, which shows in the mass of its own page.
float maximum_of(const float* values, int64_t count) {
  float lanes[kPartialSums];
  for (float& lane : lanes) lane = -__builtin_inff();
  int64_t i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
    for (int64_t l = 0; l < kPartialSums; ++l) {
      lanes[l] = values[i + l] > lanes[l] ? values[i + l] : lanes[l];
    }
  }
  for (; i < count; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  float maximum = lanes[0];
  for (const float lane : lanes) maximum = lane > maximum ? lane : maximum;
  return maximum;
}

constexpr float kLog2 = 0x1.62e43p-1F;

inline float estimate(const MassEstimates& row, int64_t group) {
  const float deviation = row.steps[group] * __builtin_sqrtf(row.spread_products[group]);
  const float mean = row.centre_steps[group] * row.centre_products[group];
  return row.factor * (mean + row.deviations * deviation) + row.log2_pages;
}

void estimates(const MassEstimates& row, int64_t first, int64_t count, float* log2_masses) {
  for (int64_t i = 0; i < count; ++i) log2_masses[i] = estimate(row, first + i);
}

PowerSum sum_of_powers(const float* values, int64_t count) {
  const float maximum = maximum_of(values, count);
  float lanes[kPartialSums] = {};
  int64_t i = 0;
  for (; i + kPartialSums <= count; i += kPartialSums) {
    for (int64_t l = 0; l < kPartialSums; ++l) {
      lanes[l] += exponential((values[i + l] - maximum) * kLog2);
    }
  }
  for (; i < count; ++i) lanes[0] += exponential((values[i] - maximum) * kLog2);
  return {.maximum = maximum, .sum = fold(lanes)};
}

void mark(const MassEstimates& row, int64_t first, int64_t count, float log2_threshold,
          uint32_t bit, uint32_t* groups) {
  const MassEstimates copy = row;  // which `groups` cannot alias
  for (int64_t group = first; group < first + count; ++group) {
    groups[group] |= estimate(copy, group) < log2_threshold ? 0 : bit;
  }
}

void page_masses(float* masses, int64_t num_pages) {
  const float maximum = maximum_of(masses, num_pages);
  for (int64_t p = 0; p < num_pages; ++p) {
    masses[p] = exponential((masses[p] - maximum) * (kLog2 / kMassStepsPerOctave));
  }
}

void mean_of_rows(const float* rows, int64_t num_rows, int64_t dim, float* mean) {
  for (int64_t i = 0; i < dim; ++i) mean[i] = rows[i];
  for (int64_t r = 1; r < num_rows; ++r) {
    for (int64_t i = 0; i < dim; ++i) mean[i] += rows[r * dim + i];
  }
  for (int64_t i = 0; i < dim; ++i) mean[i] /= static_cast<float>(num_rows);
}

constexpr EstimationKernels kEstimationKernelsOfThisInstructionSet = {
    .multiply = multiply,
    .accumulate_softmax = accumulate_softmax,
    .probabilities = probabilities,
    .sum_rows = sum_rows,
    .sum_diagonals = sum_diagonals,
    .estimates = estimates,
    .sum_of_powers = sum_of_powers,
    .mark = mark,
    .masses = page_masses,
    .mean = mean_of_rows,
};

}  // namespace
}  // namespace millrace::kernels::cpu
