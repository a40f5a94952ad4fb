// Mixtures of experts on a GPU: the rows of each expert gathered, two products, and their sum
// scattered, one expert after the other. An object, because it keeps the matrix products' plans and
// page-locked memory between calls.
//
// The host has to know how many rows chose each expert to launch its products: it waits for the
// device once a call, with some thousand rows of work behind it.
#pragma once

#include <cstdint>

#include "kernels/api/experts.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sm90/gemm/gemm.h"

namespace millrace::kernels::cuda {

// One thread and one stream at a time. The same input gives the same bits in every run.
class Experts {
 public:
  // `gemm` outlives it.
  explicit Experts(Gemm& gemm) : gemm_(gemm) {}
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;
  ~Experts();

  // At most kMaxExperts; widths are multiples of 8.
  void run(const ExpertsParams& params, Context& context);

 private:
  // Where each expert's choices begin, and their end: [num_experts + 1], of the host.
  const int32_t* begins(const int32_t* begin, int32_t num_experts, Context& context);

  Gemm& gemm_;
  int32_t* host_begin_ = nullptr;  // page-locked, [kMaxExperts + 1]
};

}  // namespace millrace::kernels::cuda
