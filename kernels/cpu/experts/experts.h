// SPDX-License-Identifier: Apache-2.0
// The MLPs of a mixture of experts: for each expert, products over the rows that chose it.
#pragma once

#include "kernels/api/experts.h"
#include "kernels/cpu/experts/expert_rows.h"
#include "kernels/cpu/float8/float8_products.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

// Used by one thread at a time. `gemm` and `float8_products` must outlive it.
class Experts {
 public:
  Experts(const Context& context, Gemm& gemm, Float8Products& float8_products)
      : context_(context), gemm_(&gemm), float8_products_(&float8_products) {}

  void run(const ExpertsParams& params);
  void run(const Float8ExpertsParams& params);

 private:
  // Computes the expert's outputs for the gathered rows that chose it.
  void run_expert(const ExpertsParams& params, int32_t expert, int64_t num_rows);
  void run_expert(const Float8ExpertsParams& params, int32_t expert, int64_t num_rows);
  template <typename Params>
  void run_all(const Params& params);

  Context context_;
  Gemm* gemm_;
  Float8Products* float8_products_;
  ExpertRows rows_;
};

}  // namespace millrace::kernels::cpu
