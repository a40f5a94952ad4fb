// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLASLt: 16-bit operands with float32 accumulation, or 8-bit floats with the
// tensor cores' own accumulation (kernels/api/float8_params.h). It is an object because it keeps plans,
// and the algorithms chosen for them, between calls.
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

// Used by one thread and in one stream at a time, because all calls share the workspace.
//
// On the shapes of 8B models, the first choice of the heuristics is up to 15 % slower than another
// of their first eight. So the first large product of a kind is timed with each of them: about 50
// ms, once.
class Gemm {
 public:
  // Smaller products, those of small models, take some microseconds and use the first algorithm.
  // The smallest product of an 8B model at a tensor parallelism of 8 has twice as many operations.
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
  // Products that share an algorithm: equal except for the number of rows, which has the same order
  // of magnitude.
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
  std::list<Planned> plans_;  // most recently used first
  std::vector<Tuned> tuned_;
};

}  // namespace millrace::kernels::cuda
