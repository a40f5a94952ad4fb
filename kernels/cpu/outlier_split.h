// The representative mixture: a set of vectors stands as the few that are furthest from its mean
// and the mean of the rest, its crowd. Spikes are what averages lose, and they sit in those few.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/estimation_kernels.h"
#include "kernels/cpu/ranking.h"

namespace millrace::kernels::cpu {

// Working memory of one thread.
class OutlierSplit {
 public:
  // At most max_rows rows at a time.
  OutlierSplit(int64_t dim, int32_t num_outliers, int64_t max_rows,
               const EstimationKernels& kernels);

  // num_rows >= 1.
  void split(const float* rows, int64_t num_rows);

  // Of all rows.
  const float* mean() const { return mean_.data(); }
  // The min(num_outliers, num_rows) rows furthest from the mean by squared distance, ties to the
  // smaller row; ascending.
  const std::vector<int32_t>& outliers() const { return outliers_; }
  // The mean of the rows that are no outliers, of which there must be some.
  void crowd(const float* rows, int64_t num_rows, float* crowd);

 private:
  int64_t dim_;
  int32_t num_outliers_;
  const EstimationKernels& kernels_;
  std::vector<float> mean_;
  std::vector<float> distances_;
  std::vector<float> crowd_rows_;
  Ranking ranking_;
  std::vector<int32_t> outliers_;
};

}  // namespace millrace::kernels::cpu
