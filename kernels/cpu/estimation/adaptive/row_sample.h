// Which row of a run stands for it in the adaptive pattern's scan (AdaptiveParams).
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::kernels::cpu {

// Working memory of one thread.
class RowSample {
 public:
  explicit RowSample(int64_t dim);

  // Of rows [num_rows, dim], num_rows >= 1, the one furthest from their mean.
  int64_t furthest(const float* rows, int64_t num_rows);

 private:
  float squared_distance(const float* row) const;

  int64_t dim_;
  int64_t lane_channels_;
  std::vector<float> mean_;
};

}  // namespace millrace::kernels::cpu
