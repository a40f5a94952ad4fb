#include "kernels/cuda/sm90/experts/experts.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/experts/expert_rows.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

// Of equal matrices one below the other, the one that begins at row `first`.
ConstMatrix part_of(const ConstMatrix& matrix, int64_t first, int64_t count) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  return {data + first * matrix.row_stride * dtype_bytes(matrix.dtype), matrix.dtype, count,
          matrix.cols, matrix.row_stride};
}

void check_shapes(const ExpertsParams& p) {
  const int64_t width = p.down.cols;
  MR_CHECK(
      p.num_experts <= kMaxExperts && p.experts_per_row >= 1 && p.experts_per_row <= p.num_experts,
      "{} of {} experts a row", p.experts_per_row, p.num_experts);
  MR_CHECK(p.gate_up.rows == p.num_experts * 2 * width && p.gate_up.cols == p.a.cols &&
               p.down.rows == p.num_experts * p.a.cols,
           "experts: {} of {} x {} and {} x {} for rows of {}", p.num_experts, p.gate_up.rows,
           p.gate_up.cols, p.down.rows, width, p.a.cols);
  MR_CHECK(p.a.cols % 8 == 0 && p.a.row_stride % 8 == 0 && width % 8 == 0,
           "experts: rows of {}, {} apart, to {}; all must be multiples of 8", p.a.cols,
           p.a.row_stride, width);
}

}  // namespace

Experts::~Experts() {
  cudaFreeHost(host_begin_);
}

const int32_t* Experts::begins(const int32_t* begin, int32_t num_experts, Context& context) {
  if (host_begin_ == nullptr) {
    void* memory = nullptr;
    MR_CUDA_CHECK(cudaMallocHost(&memory, (kMaxExperts + 1) * sizeof(int32_t)));
    host_begin_ = static_cast<int32_t*>(memory);
  }
  const auto bytes = static_cast<size_t>(num_experts + 1) * sizeof(int32_t);
  MR_CUDA_CHECK(cudaMemcpyAsync(host_begin_, begin, bytes, cudaMemcpyDeviceToHost, context.stream));
  MR_CUDA_CHECK(cudaStreamSynchronize(context.stream));
  return host_begin_;
}

void Experts::run(const ExpertsParams& p, Context& context) {
  check_shapes(p);
  const int64_t hidden = p.a.cols;
  const int64_t width = p.down.cols;
  const auto out_bytes = static_cast<size_t>(p.a.rows * hidden) * sizeof(float);
  if (!p.accumulate) MR_CUDA_CHECK(cudaMemsetAsync(p.out, 0, out_bytes, context.stream));
  if (p.a.rows == 0) return;
  auto* device_begin = context.scratch.allocate<int32_t>(p.num_experts + 1);
  auto* sorted = context.scratch.allocate<int32_t>(p.a.rows * p.experts_per_row);
  sort_choices(p, device_begin, sorted, context);
  const int32_t* begin = begins(device_begin, p.num_experts, context);
  for (int32_t expert = 0; expert < p.num_experts; ++expert) {
    const int64_t rows = begin[expert + 1] - begin[expert];
    if (rows == 0) continue;
    const int32_t* choices = sorted + begin[expert];
    gather_rows(p, choices, rows, context);
    swiglu({.a = dense_matrix(static_cast<const void*>(p.gathered), p.a.dtype, rows, hidden),
            .gate_up = part_of(p.gate_up, expert * 2 * width, 2 * width),
            .products = p.products,
            .out = dense_matrix(p.activated, p.a.dtype, rows, width)},
           context);
    // The rows below those of the expert are what the scratch held: nobody reads their products.
    const int64_t height = expert_product_rows(rows, p.a.rows);
    gemm_.run({.a = dense_matrix(static_cast<const void*>(p.activated), p.a.dtype, height, width),
               .b = part_of(p.down, expert * hidden, hidden),
               .c = dense_matrix(p.outputs, DType::kFloat32, height, hidden)},
              context);
    scatter_rows(p, choices, rows, context);
  }
}

}  // namespace millrace::kernels::cuda
