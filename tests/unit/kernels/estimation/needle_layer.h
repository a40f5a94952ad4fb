// SPDX-License-Identifier: Apache-2.0
// A layer in which all rows look at the first key, and pages and tiles have different means.
// Occasionally one query in the middle of a tile asks for one key of an earlier page, in a
// direction that no other query uses.
#pragma once

#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::kernels {

inline constexpr int64_t kNeedleTokens = 2048;
inline constexpr int kMaxNeedles = 8;

EstimationCase needle_layer(DType dtype, int num_needles = kMaxNeedles);

// How many of the needles lie on a page that the lists contain for the tile that asks for it.
int num_needles_found(const HeadLists& lists, int num_needles = kMaxNeedles);

}  // namespace millrace::kernels
