// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of page scores.
#pragma once

#include <functional>
#include <vector>

#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::kernels {

// The dense log-sum-exp of the last rows, [heads.size(), num_rows].
std::vector<float> dense_lse(EstimationCase& c, std::span<const int32_t> heads);

// The same for rows that see their last `window` keys.
std::vector<float> window_lse(EstimationCase& c, std::span<const int32_t> heads, int64_t window);

int64_t num_pages_of(const EstimationCase& c);

// [heads.size(), num_pages], computed by `operation` on arrays in host memory.
std::vector<float> scores_on_host(EstimationCase& c, std::span<const int32_t> heads,
                                  const std::vector<float>& lse,
                                  const std::function<void(const PageScoresParams&)>& operation,
                                  int64_t window = 0);

}  // namespace millrace::kernels
