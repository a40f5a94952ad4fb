// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/panel_matrix.h"

#include "common/units.h"

namespace millrace::kernels::cpu {

PanelMatrix::PanelMatrix(int64_t num_columns, int64_t dim)
    : dim_(dim), data_(static_cast<size_t>(padded(num_columns) * dim)) {}

void PanelMatrix::set_column(int64_t column, const float* values, float scale) {
  float* first = data_.data() + offset(column);
  for (int64_t d = 0; d < dim_; ++d) first[d * kPanelColumns] = scale * values[d];
}

int64_t PanelMatrix::panels_of(int64_t num_columns) {
  return ceil_div(num_columns, kPanelColumns);
}

int64_t PanelMatrix::padded(int64_t num_columns) {
  return panels_of(num_columns) * kPanelColumns;
}

}  // namespace millrace::kernels::cpu
