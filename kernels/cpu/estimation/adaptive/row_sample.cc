// Compiled without fused multiply-adds: the sums have the same bits on every machine.
#include "kernels/cpu/estimation/adaptive/row_sample.h"

#include <algorithm>
#include <array>

#include "common/units.h"
#include "kernels/api/estimation.h"

namespace millrace::kernels::cpu {

RowSample::RowSample(int64_t dim)
    : dim_(dim),
      lane_channels_(ceil_div(dim, int64_t{kDistanceLanes})),
      mean_(static_cast<size_t>(dim)) {}

void RowSample::set_tile(const float* rows, int64_t num_rows) {
  std::fill(mean_.begin(), mean_.end(), 0.0F);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t d = 0; d < dim_; ++d) mean_[static_cast<size_t>(d)] += rows[row * dim_ + d];
  }
  const float share = 1.0F / static_cast<float>(num_rows);
  for (float& x : mean_) x *= share;
}

int64_t RowSample::furthest(const float* rows, int64_t num_rows) const {
  if (num_rows == 1) return 0;
  int64_t furthest = 0;
  float largest = squared_distance(rows);
  for (int64_t row = 1; row < num_rows; ++row) {
    const float distance = squared_distance(rows + row * dim_);
    if (!(distance > largest)) continue;
    largest = distance;
    furthest = row;
  }
  return furthest;
}

float RowSample::squared_distance(const float* row) const {
  std::array<float, kDistanceLanes> lanes = {};
  for (int64_t d = 0; d < dim_; ++d) {
    const float difference = row[d] - mean_[static_cast<size_t>(d)];
    lanes[static_cast<size_t>(d / lane_channels_)] += difference * difference;
  }
  for (size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes.front();
}

}  // namespace millrace::kernels::cpu
