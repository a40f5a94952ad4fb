#include "kernels/cpu/experts/experts.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {
namespace {

// Elements that one thread copies or adds in about the time a parallel region costs to start.
constexpr int64_t kElementsPerThread = 32768;

int64_t threads_for(int64_t num_elements, const Context& context) {
  return std::min<int64_t>(context.num_threads, num_elements / kElementsPerThread + 1);
}

// Rows [first, first + count) of a matrix of equal parts, one below the other.
ConstMatrix part_of(const ConstMatrix& matrix, int64_t first, int64_t count) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  return {data + first * matrix.row_stride * dtype_bytes(matrix.dtype), matrix.dtype, count,
          matrix.cols, matrix.row_stride};
}

void check_shapes(const ExpertsParams& p) {
  const int64_t width = p.down.cols;
  MR_CHECK(p.gate_up.rows == p.num_experts * 2 * width && p.gate_up.cols == p.a.cols &&
               p.down.rows == p.num_experts * p.a.cols,
           "experts: {} of {} x {} and {} x {} for rows of {}", p.num_experts, p.gate_up.rows,
           p.gate_up.cols, p.down.rows, width, p.a.cols);
  MR_CHECK(p.experts_per_row >= 1 && p.experts_per_row <= p.num_experts, "{} of {} experts a row",
           p.experts_per_row, p.num_experts);
}

// The rows that chose the expert, and zeros below them.
void gather(const ExpertsParams& p, std::span<const int64_t> choices, int64_t num_rows,
            const Context& context) {
  const int64_t element = dtype_bytes(p.a.dtype);
  const int64_t row_bytes = p.a.cols * element;
  const auto* source = static_cast<const std::byte*>(p.a.data);
  auto* destination = static_cast<std::byte*>(p.gathered);
  const auto chosen = std::ssize(choices);
  parallel_ranges(chosen, threads_for(chosen * p.a.cols, context), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = choices[static_cast<size_t>(i)] / p.experts_per_row;
      std::memcpy(destination + i * row_bytes, source + row * p.a.row_stride * element,
                  static_cast<size_t>(row_bytes));
    }
  });
  std::memset(destination + chosen * row_bytes, 0,
              static_cast<size_t>((num_rows - chosen) * row_bytes));
}

// No two choices of an expert are of the same row.
void scatter(const ExpertsParams& p, std::span<const int64_t> choices, const Context& context) {
  const RowKernels& kernels = row_kernels(context.simd);
  const int64_t cols = p.a.cols;
  const auto chosen = std::ssize(choices);
  parallel_ranges(chosen, threads_for(chosen * cols, context), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t choice = choices[static_cast<size_t>(i)];
      kernels.add_scaled(p.outputs + i * cols, p.weights[choice], cols,
                         p.out + choice / p.experts_per_row * cols);
    }
  });
}

}  // namespace

void Experts::run(const ExpertsParams& params) {
  check_shapes(params);
  if (!params.accumulate) std::fill_n(params.out, params.a.rows * params.a.cols, 0.0F);
  rows_.sort(params.experts, params.a.rows, params.experts_per_row, params.num_experts);
  for (int32_t expert = 0; expert < params.num_experts; ++expert) run_expert(params, expert);
}

void Experts::run_expert(const ExpertsParams& p, int32_t expert) {
  const auto choices = rows_.choices_of(expert);
  if (choices.empty()) return;
  const int64_t num_rows = expert_product_rows(std::ssize(choices), p.a.rows);
  const int64_t width = p.down.cols;
  gather(p, choices, num_rows, context_);
  gemm_->run(
      {.a = dense_matrix(static_cast<const void*>(p.gathered), p.a.dtype, num_rows, p.a.cols),
       .b = part_of(p.gate_up, expert * 2 * width, 2 * width),
       .bias = p.gate_up_bias == nullptr ? nullptr : p.gate_up_bias + expert * 2 * width,
       .c = dense_matrix(p.products, DType::kFloat32, num_rows, 2 * width)});
  const Matrix activated = dense_matrix(p.activated, p.a.dtype, num_rows, width);
  activate({.gate_up = p.products, .activation = p.activation, .out = activated}, context_);
  gemm_->run({.a = activated,
              .b = part_of(p.down, expert * p.a.cols, p.a.cols),
              .bias = p.down_bias == nullptr ? nullptr : p.down_bias + expert * p.a.cols,
              .c = dense_matrix(p.outputs, DType::kFloat32, num_rows, p.a.cols)});
  scatter(p, choices, context_);
}

}  // namespace millrace::kernels::cpu
