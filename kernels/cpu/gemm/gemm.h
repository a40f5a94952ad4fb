// Matrix products through oneDNN.
#pragma once

#include <vector>

#include "kernels/api/gemm.h"
#include "kernels/cpu/runtime/context.h"
#include "kernels/cpu/runtime/matmul_cache.h"

namespace millrace::kernels::cpu {

// bfloat16 inputs of fewer rows than context.widened_rows are multiplied as such; others are widened
// to float32 tile by tile: where the machine has no bfloat16 instructions oneDNN would refuse them
// or fall back to a reference loop, and where it has slow ones (bfloat16_dots.h) float32 takes half
// the time, unless there are so few rows that reading the weights takes longest. Sums are float32
// either way. The context decides between these two only; which instructions oneDNN uses is its own
// choice (ONEDNN_MAX_CPU_ISA lowers it).
//
// Used by one thread at a time. The OpenMP thread count of the calling thread (an OpenMP control
// variable that each thread has its own copy of) is set for the call and restored.
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
