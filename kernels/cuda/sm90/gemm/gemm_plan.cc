// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/gemm/gemm_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {
namespace {

cudaDataType_t cuda_type(DType dtype) {
  if (dtype == DType::kFloat32) return CUDA_R_32F;
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
}

cudaDataType_t factor_type(const GemmShape& shape) {
  return shape.float8 ? CUDA_R_8F_E4M3 : cuda_type(shape.ab_dtype);
}

int alignment_of(const void* pointer, int64_t row_bytes) {
  constexpr uint64_t kMaxBytes = 256;  // more does not matter to cuBLASLt
  const uint64_t bits = std::bit_cast<uint64_t>(pointer) | static_cast<uint64_t>(row_bytes);
  return static_cast<int>(std::min(kMaxBytes, bits & -bits));
}

bool splits_k(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t parts = 1;
  size_t written = 0;
  MR_CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                       &parts, sizeof(parts), &written));
  return parts > 1;
}

template <typename T>
void set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  MR_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof(value)));
}

template <typename T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  MR_CUBLAS_CHECK(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

}  // namespace

void check_cublas(cublasStatus_t status, const char* call, std::source_location where) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]] {
    throw CudaError(cublasLtGetStatusString(status), call, where);
  }
}

GemmShape GemmShape::of(const GemmParams& p) {
  const int64_t c_bytes = dtype_bytes(p.c.dtype);
  const int alignment = std::min({alignment_of(p.a.data, p.a.row_stride * 2),
                                  alignment_of(p.b.data, p.b.row_stride * 2),
                                  alignment_of(p.c.data, p.c.row_stride * c_bytes)});
  return {.m = p.a.rows,
          .n = p.b.rows,
          .k = p.a.cols,
          .a_stride = p.a.row_stride,
          .b_stride = p.b.row_stride,
          .c_stride = p.c.row_stride,
          .ab_dtype = p.a.dtype,
          .c_dtype = p.c.dtype,
          .has_bias = p.bias != nullptr,
          .alignment_bytes = alignment};
}

GemmShape GemmShape::of(const Float8GemmParams& p) {
  const int64_t c_bytes = dtype_bytes(p.c.dtype);
  const int alignment =
      std::min({alignment_of(p.a.data, p.a.row_stride), alignment_of(p.b.data, p.b.row_stride),
                alignment_of(p.c.data, p.c.row_stride * c_bytes)});
  return {.m = p.a.rows,
          .n = p.b.rows,
          .k = p.a.cols,
          .a_stride = p.a.row_stride,
          .b_stride = p.b.row_stride,
          .c_stride = p.c.row_stride,
          .float8 = true,
          .c_dtype = p.c.dtype,
          .has_bias = p.bias != nullptr,
          .alignment_bytes = alignment};
}

GemmPlan::Layout GemmPlan::make_layout(cudaDataType_t type, int64_t rows, int64_t cols,
                                       int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  MR_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                             static_cast<uint64_t>(cols), stride));
  return Layout(layout);
}

// cuBLASLt is column-major: our row-major [rows, cols] is its column-major [cols, rows], and it is
// asked for c^T = b a^T. The bias then runs along its rows, as cuBLASLt requires.
GemmPlan::GemmPlan(const GemmShape& shape)
    : shape_(shape),
      a_(make_layout(factor_type(shape), shape.k, shape.m, shape.a_stride)),
      b_(make_layout(factor_type(shape), shape.k, shape.n, shape.b_stride)),
      c_(make_layout(cuda_type(shape.c_dtype), shape.n, shape.m, shape.c_stride)) {
  cublasLtMatmulDesc_t product = nullptr;
  MR_CUBLAS_CHECK(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  product_.reset(product);
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(product, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  if (shape.has_bias) set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  if (!shape.float8) return;
  set(product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
  set(product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
  set(product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
}

// The pointers may change from one product of a shape to the next; whether there are any is part of
// the shape.
void GemmPlan::set_pointers(const GemmOperands& operands) const {
  if (shape_.has_bias) set(product_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  if (!shape_.float8) return;
  set(product_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.b_scales);
  set(product_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.a_scales);
}

std::vector<GemmAlgorithm> GemmPlan::algorithms(cublasLtHandle_t handle,
                                                const GemmOperands& operands,
                                                int64_t workspace_bytes, int max_count) const {
  set_pointers(operands);
  cublasLtMatmulPreference_t created = nullptr;
  MR_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&created));
  const Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(created);
  set(created, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
  const auto alignment = static_cast<uint32_t>(shape_.alignment_bytes);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(created, attribute, alignment);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(max_count));
  int count = 0;
  MR_CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(handle, product_.get(), b_.get(), a_.get(),
                                                 c_.get(), c_.get(), created, max_count,
                                                 found.data(), &count));
  found.resize(static_cast<size_t>(count));
  std::erase_if(found, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  if (found.empty()) {
    throw CudaError(fmt::format("no algorithm for {} x {} x {}", shape_.m, shape_.n, shape_.k),
                    "cublasLtMatmulAlgoGetHeuristic", std::source_location::current());
  }
  std::vector<GemmAlgorithm> whole;
  for (const auto& result : found) {
    if (splits_k(result.algo)) continue;
    whole.push_back({result.algo, static_cast<int64_t>(result.workspaceSize)});
  }
  if (whole.empty()) {
    whole.push_back({found.front().algo, static_cast<int64_t>(found.front().workspaceSize)});
  }
  return whole;
}

std::optional<GemmAlgorithm> GemmPlan::adapted(cublasLtHandle_t handle,
                                               const GemmOperands& operands,
                                               const GemmAlgorithm& algorithm,
                                               int64_t workspace_bytes) const {
  set_pointers(operands);
  cublasLtMatmulHeuristicResult_t result{};
  const auto status = cublasLtMatmulAlgoCheck(handle, product_.get(), b_.get(), a_.get(), c_.get(),
                                              c_.get(), &algorithm.choice, &result);
  const auto needed = static_cast<int64_t>(result.workspaceSize);
  if (status != CUBLAS_STATUS_SUCCESS || needed > workspace_bytes) return std::nullopt;
  return GemmAlgorithm{algorithm.choice, needed};
}

void GemmPlan::run(cublasLtHandle_t handle, const GemmAlgorithm& algorithm,
                   const GemmOperands& operands, void* workspace, cudaStream_t stream) const {
  set_pointers(operands);
  const float alpha = 1;
  const float beta = operands.accumulate ? 1 : 0;
  MR_CUBLAS_CHECK(cublasLtMatmul(handle, product_.get(), &alpha, operands.b, b_.get(), operands.a,
                                 a_.get(), &beta, operands.c, c_.get(), operands.out, c_.get(),
                                 &algorithm.choice, workspace,
                                 static_cast<size_t>(algorithm.workspace_bytes), stream));
}

}  // namespace millrace::kernels::cuda
