// The MLPs of a mixture of experts: a product for each expert over the rows that chose it.
#pragma once

#include "kernels/api/experts.h"
#include "kernels/cpu/experts/expert_rows.h"
#include "kernels/cpu/float8/float8_products.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

// Used by one thread at a time. Both kinds of products outlive it.
class Experts {
 public:
  Experts(const Context& context, Gemm& gemm, Float8Products& float8_products)
      : context_(context), gemm_(&gemm), float8_products_(&float8_products) {}

  void run(const ExpertsParams& params);
  void run(const Float8ExpertsParams& params);

 private:
  // From the rows that chose the expert, gathered, to what it gives for them.
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
