// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit floats on a CPU: operands are widened to float32, some rows of the weight at a
// time. Exact except for float32's rounding. Compared with bfloat16, weights take half the memory,
// but products take longer.
#pragma once

#include <vector>

#include "kernels/api/float8_params.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

// Used by one thread at a time. `gemm` must outlive it.
class Float8Products {
 public:
  Float8Products(const Context& context, Gemm& gemm) : context_(context), gemm_(&gemm) {}

  void gemm(const Float8GemmParams& params);

 private:
  Context context_;
  Gemm* gemm_;
  // Kept between calls: [rows of a, k] and [kWeightRows, k].
  std::vector<float> a_;
  std::vector<float> weight_;
};

}  // namespace millrace::kernels::cpu
