// Matrix products through oneDNN.
#pragma once

#include <memory>

#include "kernels/api/gemm.h"
#include "kernels/cpu/context.h"

namespace millrace::kernels::cpu {

// Keeps the primitives oneDNN compiled for the shapes seen last. bfloat16 inputs are multiplied as
// such where the context has bfloat16 instructions, and are widened to float32 tile by tile where
// it has not; either way sums are float32. Used by one thread at a time; that thread's OpenMP
// thread count is set for the call and restored.
class Gemm {
 public:
  explicit Gemm(const Context& context);
  ~Gemm();

  void run(const GemmParams& params);

 private:
  class Primitives;

  void run_widened(const GemmParams& params);

  Context context_;
  std::unique_ptr<Primitives> primitives_;
};

}  // namespace millrace::kernels::cpu
