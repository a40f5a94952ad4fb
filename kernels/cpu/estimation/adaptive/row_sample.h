// Which row of a run stands for it in the adaptive pattern's scan (AdaptiveParams).
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::kernels::cpu {

// Working memory of one thread.
class RowSample {
 public:
  explicit RowSample(int64_t dim);

  // The tile that the runs below are of: rows [num_rows, dim], num_rows >= 1.
  void set_tile(const float* rows, int64_t num_rows);
  // Of a run [num_rows, dim], num_rows >= 1, the row furthest from the tile's mean.
  int64_t furthest(const float* rows, int64_t num_rows) const;

 private:
  float squared_distance(const float* row) const;

  int64_t dim_;
  int64_t lane_channels_;
  std::vector<float> mean_;
};

}  // namespace millrace::kernels::cpu
