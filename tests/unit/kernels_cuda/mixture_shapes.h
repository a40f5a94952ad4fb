// Shapes of mixtures of experts, and which experts their rows choose.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::kernels::cuda {

struct MixtureShape {
  int64_t rows, hidden, width;
  int32_t num_experts, experts_per_row;
};

// Rows of a are 8 elements apart.
constexpr int64_t kPadding = 8;

// Experts of a row: the first ones from a start that moves on, so that some are nobody's.
inline std::vector<int32_t> spread(const MixtureShape& shape, int32_t used) {
  std::vector<int32_t> experts;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int32_t n = 0; n < shape.experts_per_row; ++n) {
      experts.push_back(static_cast<int32_t>((row * row + n) % used));
    }
  }
  return experts;
}

// Experts of a row each: so many rows choose the first one, and so on, the rows of all by turns.
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
