// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/experts/experts.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>

#include "common/check.h"
#include "kernels/cpu/float8/float8_rows.h"
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

// Rows [first, first + count) of a matrix that consists of equal parts, stacked.
ConstMatrix part_of(const ConstMatrix& matrix, int64_t first, int64_t count) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  return {data + first * matrix.row_stride * dtype_bytes(matrix.dtype), matrix.dtype, count,
          matrix.cols, matrix.row_stride};
}

ConstFloat8Matrix part_of(const ConstFloat8Matrix& matrix, int64_t first, int64_t count) {
  return {matrix.data + first * matrix.row_stride, matrix.scales + first, count, matrix.cols,
          matrix.row_stride};
}

// ExpertsParams or Float8ExpertsParams.
template <typename Params>
void check_shapes(const Params& p) {
  const int64_t width = p.down.cols;
  MR_CHECK(p.gate_up.rows == p.num_experts * 2 * width && p.gate_up.cols == p.a.cols &&
               p.down.rows == p.num_experts * p.a.cols,
           "experts: {} of {} x {} and {} x {} for rows of {}", p.num_experts, p.gate_up.rows,
           p.gate_up.cols, p.down.rows, width, p.a.cols);
  MR_CHECK(p.experts_per_row >= 1 && p.experts_per_row <= p.num_experts, "{} of {} experts a row",
           p.experts_per_row, p.num_experts);
}

Float8Matrix gathered_codes(const Float8ExpertsParams& p, int64_t num_rows) {
  return {static_cast<Float8*>(p.gathered), p.row_scales, num_rows, p.a.cols, p.a.cols};
}

int64_t element_bytes(const ConstMatrix& matrix) {
  return dtype_bytes(matrix.dtype);
}
int64_t element_bytes(const ConstFloat8Matrix&) {
  return sizeof(Float8);
}

// The rows that chose the expert, and zeros below them.
template <typename Params>
void gather(const Params& p, std::span<const int64_t> choices, int64_t num_rows,
            const Context& context) {
  const int64_t element = element_bytes(p.a);
  const int64_t row_bytes = p.a.cols * element;
  const auto* source = reinterpret_cast<const std::byte*>(p.a.data);
  auto* destination = static_cast<std::byte*>(p.gathered);
  const auto chosen = std::ssize(choices);
  parallel_ranges(chosen, threads_for(chosen * p.a.cols, context), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = choices[static_cast<size_t>(i)] / p.experts_per_row;
      std::memcpy(destination + i * row_bytes, source + row * p.a.row_stride * element,
                  static_cast<size_t>(row_bytes));
      if constexpr (std::is_same_v<Params, Float8ExpertsParams>) {
        p.row_scales[i] = p.a.scales[row];
      }
    }
  });
  std::memset(destination + chosen * row_bytes, 0,
              static_cast<size_t>((num_rows - chosen) * row_bytes));
  if constexpr (std::is_same_v<Params, Float8ExpertsParams>) {
    std::fill(p.row_scales + chosen, p.row_scales + num_rows, 1.0F);
  }
}

// No two choices of an expert belong to the same row.
template <typename Params>
void scatter(const Params& p, std::span<const int64_t> choices, const Context& context) {
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
  run_all(params);
}
void Experts::run(const Float8ExpertsParams& params) {
  run_all(params);
}

template <typename Params>
void Experts::run_all(const Params& params) {
  check_shapes(params);
  if (!params.accumulate) std::fill_n(params.out, params.a.rows * params.a.cols, 0.0F);
  rows_.sort(params.experts, params.a.rows, params.experts_per_row, params.num_experts);
  for (int32_t expert = 0; expert < params.num_experts; ++expert) {
    const auto choices = rows_.choices_of(expert);
    if (choices.empty()) continue;
    const int64_t num_rows = expert_product_rows(std::ssize(choices), params.a.rows);
    gather(params, choices, num_rows, context_);
    run_expert(params, expert, num_rows);
    scatter(params, choices, context_);
  }
}

void Experts::run_expert(const ExpertsParams& p, int32_t expert, int64_t num_rows) {
  const int64_t width = p.down.cols;
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
}

void Experts::run_expert(const Float8ExpertsParams& p, int32_t expert, int64_t num_rows) {
  const int64_t width = p.down.cols;
  float8_products_->gemm({.a = gathered_codes(p, num_rows),
                          .b = part_of(p.gate_up, expert * 2 * width, 2 * width),
                          .c = dense_matrix(p.products, DType::kFloat32, num_rows, 2 * width)});
  const Matrix activated = dense_matrix(p.activated, p.dtype, num_rows, width);
  activate({.gate_up = p.products, .activation = p.activation, .out = activated}, context_);
  const Float8Matrix quantized{p.quantized, p.row_scales, num_rows, width, width};
  float8_quantize({.a = activated, .out = quantized}, context_);
  float8_products_->gemm({.a = quantized,
                          .b = part_of(p.down, expert * p.a.cols, p.a.cols),
                          .c = dense_matrix(p.outputs, DType::kFloat32, num_rows, p.a.cols)});
}

}  // namespace millrace::kernels::cpu
