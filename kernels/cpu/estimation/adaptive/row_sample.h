// SPDX-License-Identifier: Apache-2.0
// Chooses the rows of a tile that the adaptive pattern's scan multiplies with keys
// (AdaptiveParams).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kernels::cpu {

// Working memory of one thread.
class RowSample {
 public:
  explicit RowSample(int64_t dim);

  // Chooses min(count, num_rows) of the rows [num_rows, dim] of a tile, and returns them in the
  // order of choice. Valid until the next call.
  std::span<const int64_t> choose(const float* rows, int64_t num_rows, int64_t count);

 private:
  void quantise(const float* rows, int64_t num_rows);
  int64_t furthest_from_mean() const;
  // The row that is furthest from its nearest chosen row, now that `last` is chosen.
  int64_t furthest_from_chosen(int64_t last);
  const int8_t* row(int64_t number) const { return bytes_.data() + number * dim_; }

  int64_t dim_;
  std::vector<int8_t> bytes_;       // [rows, dim]
  std::vector<int32_t> distances_;  // [rows] squared, to the nearest chosen row; -1 if chosen
  std::vector<int64_t> chosen_;
};

}  // namespace millrace::kernels::cpu
