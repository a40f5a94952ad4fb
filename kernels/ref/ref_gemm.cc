#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {

void gemm(const GemmParams& params) {
  const auto& [a, b, bias, c, accumulate] = params;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.rows; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < a.cols; ++l) {
        sum += load(a.data, a.dtype, i * a.row_stride + l) *
               load(b.data, b.dtype, j * b.row_stride + l);
      }
      if (bias != nullptr) sum += bias[j];
      const int64_t at = i * c.row_stride + j;
      if (accumulate) sum += load(c.data, c.dtype, at);
      store(c.data, c.dtype, at, sum);
    }
  }
}

}  // namespace millrace::kernels::ref
