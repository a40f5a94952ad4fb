// SPDX-License-Identifier: Apache-2.0
// The results of a probe of the last rows, by the reference and by the loops that set the
// tolerance.
#pragma once

#include <vector>

#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::kernels {

struct ProbeSums {
  ProbeSums(const EstimationCase& c, size_t num_heads_in);

  // Only the sums of the `index`-th of num_heads heads.
  ProbeSums part_of_head(size_t index) const;

  size_t num_heads;
  std::vector<float> columns;    // [heads, num_tokens]
  std::vector<float> diagonals;  // [heads, num_tokens]
  std::vector<float> lse;        // [heads, last rows]
};

ProbeSums reference_probe(EstimationCase& c, std::span<const int32_t> heads);

// The obvious loops in float32, on the values the kernels read.
ProbeSums naive_probe(EstimationCase& c, std::span<const int32_t> heads);

void expect_same_bits(const ProbeSums& a, const ProbeSums& b);

// Allows the sums `sum_error` beyond the naive loop's error.
void expect_as_good_as_naive(const ProbeSums& actual, const ProbeSums& naive,
                             const ProbeSums& reference, double sum_error);

}  // namespace millrace::kernels
