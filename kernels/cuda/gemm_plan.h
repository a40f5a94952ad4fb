// How cuBLASLt computes products of one shape: descriptors and the algorithm its heuristics chose.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <source_location>
#include <type_traits>

#include "kernels/api/gemm.h"

namespace millrace::kernels::cuda {

void check_cublas(cublasStatus_t status, const char* call,
                  std::source_location where = std::source_location::current());

// Everything a plan depends on.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  DType c_dtype = DType::kFloat32;
  bool has_bias = false;
  int alignment_bytes = 0;  // of the least aligned operand, at most 256

  static GemmShape of(const GemmParams& params);
  bool operator==(const GemmShape&) const = default;
};

class GemmPlan {
 public:
  GemmPlan(cublasLtHandle_t handle, const GemmShape& shape, int64_t workspace_bytes);

  const GemmShape& shape() const { return shape_; }
  // `bias` is in the dtype of c, or null.
  void run(cublasLtHandle_t handle, const GemmParams& params, const void* bias, void* workspace,
           cudaStream_t stream) const;

 private:
  template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
  struct Destroy {
    void operator()(Handle handle) const { kDestroy(handle); }
  };
  template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
  using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, kDestroy>>;
  using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  static Layout make_layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride);
  void choose_algorithm(cublasLtHandle_t handle, int64_t workspace_bytes);

  GemmShape shape_;
  Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
  int64_t workspace_bytes_ = 0;
};

}  // namespace millrace::kernels::cuda

#define MR_CUBLAS_CHECK(expr) ::millrace::kernels::cuda::check_cublas((expr), #expr)
