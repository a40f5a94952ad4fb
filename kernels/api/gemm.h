// SPDX-License-Identifier: Apache-2.0
// Matrix product with the weight as Hugging Face stores it ([out features, in features]).
#pragma once

#include "kernels/api/matrix.h"

namespace millrace::kernels {

// c = a * b^T (+ bias) (+ c when `accumulate`)
struct GemmParams {
  ConstMatrix a;                // [m, k], float32 or bfloat16
  ConstMatrix b;                // [n, k], the dtype of a
  const float* bias = nullptr;  // [n] or null
  Matrix c;                     // [m, n], float32, or the device's projection dtype
  bool accumulate = false;      // only into float32
};

}  // namespace millrace::kernels
