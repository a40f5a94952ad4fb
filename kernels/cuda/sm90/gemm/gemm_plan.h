// SPDX-License-Identifier: Apache-2.0
// How cuBLASLt computes products of one shape: its descriptors, and its algorithms for the shape.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <type_traits>
#include <vector>

#include "kernels/api/float8_params.h"
#include "kernels/api/gemm.h"

namespace millrace::kernels::cuda {

void check_cublas(cublasStatus_t status, const char* call,
                  std::source_location where = std::source_location::current());

// Everything a plan depends on.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
  bool float8 = false;                // a and b are 8-bit floats, scaled by row
  DType ab_dtype = DType::kBFloat16;  // if they are not
  DType c_dtype = DType::kFloat32;
  bool has_bias = false;
  int alignment_bytes = 0;  // of the least aligned operand, at most 256

  static GemmShape of(const GemmParams& params);
  static GemmShape of(const Float8GemmParams& params);
  bool operator==(const GemmShape&) const = default;
};

struct GemmAlgorithm {
  cublasLtMatmulAlgo_t choice{};
  int64_t workspace_bytes = 0;
};

// Addresses of the operands of one product.
struct GemmOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const float* a_scales = nullptr;  // only for float8
  const float* b_scales = nullptr;
  const void* bias = nullptr;  // in the dtype of c, or null
  const void* c = nullptr;     // read if `accumulate`
  void* out = nullptr;         // may be c
  bool accumulate = false;
};

class GemmPlan {
 public:
  explicit GemmPlan(const GemmShape& shape);

  const GemmShape& shape() const { return shape_; }

  // The algorithms that the heuristics name, the best first, at most `max_count`. All of them sum
  // the terms in the same order (none splits k), so the choice among them changes no bit of the
  // result. A shape that only has other algorithms gets the first of those. A float8 product only
  // has algorithms if operands are given: any that it will be run with.
  std::vector<GemmAlgorithm> algorithms(cublasLtHandle_t handle, const GemmOperands& operands,
                                        int64_t workspace_bytes, int max_count) const;
  // An algorithm that was found for another number of rows, with the workspace that it needs for
  // this shape. Empty if it does not support the shape.
  std::optional<GemmAlgorithm> adapted(cublasLtHandle_t handle, const GemmOperands& operands,
                                       const GemmAlgorithm& algorithm,
                                       int64_t workspace_bytes) const;

  void run(cublasLtHandle_t handle, const GemmAlgorithm& algorithm, const GemmOperands& operands,
           void* workspace, cudaStream_t stream) const;

 private:
  template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
  struct Destroy {
    void operator()(Handle handle) const { kDestroy(handle); }
  };
  template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
  using Owner = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, kDestroy>>;
  using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  void set_pointers(const GemmOperands& operands) const;
  static Layout make_layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride);

  GemmShape shape_;
  Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product_;
  Layout a_, b_, c_;
};

}  // namespace millrace::kernels::cuda

#define MR_CUBLAS_CHECK(expr) ::millrace::kernels::cuda::check_cublas((expr), #expr)
