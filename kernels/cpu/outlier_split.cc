#include "kernels/cpu/outlier_split.h"

#include <algorithm>

namespace millrace::kernels::cpu {

OutlierSplit::OutlierSplit(int64_t dim, int32_t num_outliers, int64_t max_rows,
                           const EstimationKernels& kernels)
    : dim_(dim),
      num_outliers_(num_outliers),
      kernels_(kernels),
      mean_(static_cast<size_t>(dim)),
      distances_(static_cast<size_t>(max_rows)),
      crowd_rows_(static_cast<size_t>(max_rows * dim)) {}

void OutlierSplit::split(const float* rows, int64_t num_rows) {
  kernels_.mean(rows, num_rows, dim_, mean_.data());
  kernels_.squared_distances(rows, num_rows, dim_, mean_.data(), distances_.data());
  ranking_.clear();
  for (int32_t r = 0; r < num_rows; ++r) ranking_.add(r, distances_[static_cast<size_t>(r)]);
  outliers_.clear();
  ranking_.best(static_cast<size_t>(num_outliers_), outliers_);
  std::sort(outliers_.begin(), outliers_.end());
}

void OutlierSplit::crowd(const float* rows, int64_t num_rows, float* crowd) {
  auto outlier = outliers_.begin();
  int64_t num_kept = 0;
  for (int64_t r = 0; r < num_rows; ++r) {
    if (outlier != outliers_.end() && *outlier == r) {
      ++outlier;
    } else {
      std::copy_n(rows + r * dim_, dim_, crowd_rows_.begin() + num_kept++ * dim_);
    }
  }
  kernels_.mean(crowd_rows_.data(), num_kept, dim_, crowd);
}

}  // namespace millrace::kernels::cpu
