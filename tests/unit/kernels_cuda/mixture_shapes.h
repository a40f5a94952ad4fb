// SPDX-License-Identifier: Apache-2.0
// Shapes of mixtures of experts, and which experts their rows choose.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::kernels::cuda {

struct MixtureShape {
  int64_t rows, hidden, width;
  int32_t num_experts, experts_per_row;
};

// Gap between the rows of a, in elements.
constexpr int64_t kPadding = 8;

// The experts of each row: consecutive ones from a start that moves from row to row, so that some
// experts are chosen by no row.
inline std::vector<int32_t> spread(const MixtureShape& shape, int32_t used) {
  std::vector<int32_t> experts;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int32_t n = 0; n < shape.experts_per_row; ++n) {
      experts.push_back(static_cast<int32_t>((row * row + n) % used));
    }
  }
  return experts;
}

// One expert a row. counts[i] rows choose expert i, and the rows of different experts alternate.
inline std::vector<int32_t> by_counts(std::vector<int32_t> counts) {
  std::vector<int32_t> experts;
  for (bool some = true; some;) {
    some = false;
    for (size_t expert = 0; expert < counts.size(); ++expert) {
      if (counts[expert] == 0) continue;
      --counts[expert];
      experts.push_back(static_cast<int32_t>(expert));
      some = true;
    }
  }
  return experts;
}

}  // namespace millrace::kernels::cuda
