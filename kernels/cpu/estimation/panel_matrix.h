// SPDX-License-Identifier: Apache-2.0
// A matrix of column vectors, stored so that a product with it reads memory in order: panels of
// kPanelColumns columns, each panel [dim, kPanelColumns].
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/estimation/estimation_kernels.h"

namespace millrace::kernels::cpu {

class PanelMatrix {
 public:
  // Columns are zero until set; the last panel is filled up with zero columns.
  PanelMatrix(int64_t num_columns, int64_t dim);

  // Different columns may be set by different threads.
  void set_column(int64_t column, const float* values, float scale = 1.0F);
  float at(int64_t column, int64_t d) const {
    return data_[static_cast<size_t>(offset(column) + d * kPanelColumns)];
  }

  const float* panels() const { return data_.data(); }
  static int64_t panels_of(int64_t num_columns);
  // num_columns rounded up to whole panels: the least out_stride of a product.
  static int64_t padded(int64_t num_columns);

 private:
  // Of a column's first element.
  int64_t offset(int64_t column) const {
    return column / kPanelColumns * kPanelColumns * dim_ + column % kPanelColumns;
  }

  int64_t dim_;
  std::vector<float> data_;
};

}  // namespace millrace::kernels::cpu
