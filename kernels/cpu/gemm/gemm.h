// SPDX-License-Identifier: Apache-2.0
// Matrix products through oneDNN.
#pragma once

#include <vector>

#include "kernels/api/gemm.h"
#include "kernels/cpu/runtime/context.h"
#include "kernels/cpu/runtime/matmul_cache.h"

namespace millrace::kernels::cpu {

// bfloat16 inputs with fewer rows than context.widened_rows are multiplied as bfloat16; others are
// widened to float32 tile by tile. Without bfloat16 instructions oneDNN would refuse bfloat16 or
// fall back to a reference loop. With slow ones (bfloat16_dots.h) float32 takes half the time,
// unless there are so few rows that reading the weights takes longest. Sums are float32 either way.
// The context decides only between these two; oneDNN itself chooses the instructions
// (ONEDNN_MAX_CPU_ISA lowers them).
//
// Used by one thread at a time. The OpenMP thread count of the calling thread (a control variable
// of which each thread has its own copy) is set for the call and restored.
class Gemm {
 public:
  explicit Gemm(const Context& context);

  void run(const GemmParams& params);

 private:
  void multiply(const GemmParams& params);
  void multiply_widened(const GemmParams& params);

  Context context_;
  MatmulCache primitives_;
  std::vector<float> a_tile_;  // scratch of multiply_widened, kept between calls
  std::vector<float> b_tile_;
};

}  // namespace millrace::kernels::cpu
