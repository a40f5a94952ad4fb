// Matrix products by cuBLASLt: bfloat16 operands, float32 accumulation. An object, because plans
// (algorithm and descriptors of a shape) and the workspace are kept between calls.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>

#include "kernels/api/gemm.h"
#include "kernels/cuda/context.h"

namespace millrace::kernels::cuda {

class GemmPlan;

// One thread at a time, one stream at a time: the workspace is shared by all calls.
class Gemm {
 public:
  Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  void run(const GemmParams& params, Context& context);

 private:
  const GemmPlan& plan_for(const GemmParams& params);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::list<GemmPlan> plans_;  // the last used first
};

}  // namespace millrace::kernels::cuda
