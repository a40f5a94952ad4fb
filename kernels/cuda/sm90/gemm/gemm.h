// Matrix products by cuBLASLt: operands of 16 bits, with float32 accumulation, or of 8 bits, with that
// of the tensor cores alone (kernels/api/float8.h). An object, because plans and the algorithms chosen for them are kept between calls.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <list>
#include <vector>

#include "kernels/api/gemm.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sm90/gemm/gemm_plan.h"

namespace millrace::kernels::cuda {

// One thread at a time, one stream at a time: the workspace is shared by all calls.
//
// The heuristics' first choice is up to 15 % slower than another of their first eight on the shapes
// of 8B models, so the first large product of a kind is timed with each of them: about 50 ms, once.
class Gemm {
 public:
  // Products of less take some microseconds and the first algorithm: those of small models. The
  // least of an 8B model's at a tensor parallelism of 8 has twice as many operations.
  static constexpr double kMinTunedFlops = 4e9;

  explicit Gemm(double min_tuned_flops = kMinTunedFlops);
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;
  ~Gemm();

  void run(const GemmParams& params, Context& context);
  void run(const Float8GemmParams& params, Context& context);

 private:
  struct Planned {
    GemmPlan plan;
    GemmAlgorithm algorithm;
  };
  // Products that one algorithm serves: equal but for the number of rows, which is of one
  // magnitude.
  struct Tuned {
    GemmShape kind;
    GemmAlgorithm algorithm;
  };

  void run(const GemmShape& shape, const GemmOperands& operands, Context& context);
  const Planned& planned(const GemmShape& shape, const GemmOperands& operands, Context& context);
  GemmAlgorithm choose(const GemmPlan& plan, const GemmOperands& operands, Context& context);
  GemmAlgorithm fastest(const GemmPlan& plan, const GemmOperands& operands, Context& context);

  double min_tuned_flops_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::list<Planned> plans_;  // the last used first
  std::vector<Tuned> tuned_;
};

}  // namespace millrace::kernels::cuda
