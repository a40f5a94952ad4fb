// SPDX-License-Identifier: Apache-2.0
// A matrix of column vectors, stored so that a product with it reads memory in order: panels of
// kPanelColumns columns, each panel [dim, kPanelColumns].
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::kernels::cpu {

class PanelMatrix {
 public:
  // Columns are zero until set; the last panel is filled up with zero columns.
  PanelMatrix(int64_t num_columns, int64_t dim);

  // Different columns may be set by different threads.
  void set_column(int64_t column, const float* values, float scale = 1.0F);

  const float* panels() const { return data_.data(); }
  static int64_t panels_of(int64_t num_columns);
  // num_columns rounded up to whole panels: the least out_stride of a product.
  static int64_t padded(int64_t num_columns);

 private:
  int64_t dim_;
  std::vector<float> data_;
};

}  // namespace millrace::kernels::cpu
