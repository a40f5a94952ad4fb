#include "kernels/cuda/gemm.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm_plan.h"
#include "kernels/cuda/round_to_bf16.h"

namespace millrace::kernels::cuda {
namespace {

// What NVIDIA recommends on Hopper; split-k products of few rows need it.
constexpr int64_t kWorkspaceBytes = 32 << 20;

// A layer has four shapes, a vocabulary one, each again for the last, shorter row tile: room for
// those of several prompts.
constexpr size_t kMaxPlans = 64;

void check_shapes(const GemmParams& p) {
  MR_CHECK(p.a.cols == p.b.cols && p.a.cols > 0, "gemm: a has {} columns, b {}", p.a.cols,
           p.b.cols);
  MR_CHECK(p.c.rows == p.a.rows && p.c.cols == p.b.rows, "gemm: c is {} x {}, a b^T is {} x {}",
           p.c.rows, p.c.cols, p.a.rows, p.b.rows);
  MR_CHECK(p.a.dtype == DType::kBFloat16 && p.b.dtype == DType::kBFloat16, "gemm: a is {}, b {}",
           dtype_name(p.a.dtype), dtype_name(p.b.dtype));
  MR_CHECK(p.c.dtype == DType::kFloat32 || (p.c.dtype == DType::kBFloat16 && !p.accumulate),
           "gemm: c is {}, accumulate {}", dtype_name(p.c.dtype), p.accumulate);
}

}  // namespace

Gemm::Gemm() {
  MR_CUBLAS_CHECK(cublasLtCreate(&handle_));
  MR_CUDA_CHECK(cudaMalloc(&workspace_, kWorkspaceBytes));
}

Gemm::~Gemm() {
  cudaFree(workspace_);
  cublasLtDestroy(handle_);
}

const GemmPlan& Gemm::plan_for(const GemmParams& params) {
  const GemmShape shape = GemmShape::of(params);
  const auto known =
      std::ranges::find_if(plans_, [&](const GemmPlan& plan) { return plan.shape() == shape; });
  if (known != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, known);
    return plans_.front();
  }
  if (plans_.size() == kMaxPlans) plans_.pop_back();
  return plans_.emplace_front(handle_, shape, kWorkspaceBytes);
}

void Gemm::run(const GemmParams& params, Context& context) {
  check_shapes(params);
  if (params.c.rows == 0 || params.c.cols == 0) return;
  const void* bias = params.bias;
  if (bias != nullptr && params.c.dtype == DType::kBFloat16) {
    // cuBLASLt wants the bias in the dtype of c. A bfloat16 checkpoint's bias is exact in it.
    auto* rounded = context.scratch.allocate<BFloat16>(params.c.cols);
    round_to_bf16(params.bias, params.c.cols, rounded, context.stream);
    bias = rounded;
  }
  plan_for(params).run(handle_, params, bias, workspace_, context.stream);
}

}  // namespace millrace::kernels::cuda
