// SPDX-License-Identifier: Apache-2.0
// The sums over the last rows, by the reference and by the loops that set the
// tolerance.
#pragma once

#include <vector>

#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::kernels {

struct LastRowSums {
  LastRowSums(const EstimationCase& c, size_t num_heads_in);

  // Only the sums of the `index`-th of num_heads heads.
  LastRowSums part_of_head(size_t index) const;

  size_t num_heads;
  std::vector<float> columns;    // [heads, num_tokens]
  std::vector<float> diagonals;  // [heads, num_tokens]
  std::vector<float> lse;        // [heads, last rows]
};

LastRowSums reference_sums(EstimationCase& c, std::span<const int32_t> heads);

// The obvious loops in float32, on the values the kernels read.
LastRowSums naive_sums(EstimationCase& c, std::span<const int32_t> heads);

void expect_same_bits(const LastRowSums& a, const LastRowSums& b);

// Allows the sums `sum_error` beyond the naive loop's error.
void expect_as_good_as_naive(const LastRowSums& actual, const LastRowSums& naive,
                             const LastRowSums& reference, double sum_error);

}  // namespace millrace::kernels
