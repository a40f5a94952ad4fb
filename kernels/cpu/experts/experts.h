// The MLPs of a mixture of experts: a product for each expert over the rows that chose it.
#pragma once

#include "kernels/api/experts.h"
#include "kernels/cpu/experts/expert_rows.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

// Used by one thread at a time. The gemm outlives it.
class Experts {
 public:
  Experts(const Context& context, Gemm& gemm) : context_(context), gemm_(&gemm) {}

  void run(const ExpertsParams& params);

 private:
  void run_expert(const ExpertsParams& params, int32_t expert);

  Context context_;
  Gemm* gemm_;
  ExpertRows rows_;
};

}  // namespace millrace::kernels::cpu
