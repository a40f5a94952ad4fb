// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/millrace_bench/kernels/case_shapes.h"
#include "bench/millrace_bench/kernels/float8_operand.h"
#include "bench/millrace_bench/kernels/kernel_cases.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::bench {

namespace {

constexpr auto kCopyTimeout = std::chrono::minutes(1);

// An element of a product, and what Hopper's tensor cores may lose of it. For each 32 products and
// the sum so far, they keep 13 bits after the binary point of the largest, and cut off the bits
// below.
struct Dot {
  double exact = 0;
  double slack = 0;
};

Dot dot(const std::vector<float>& a, const std::vector<float>& b) {
  constexpr size_t kStep = 32;
  Dot sum;
  for (size_t first = 0; first < a.size(); first += kStep) {
    double largest = std::abs(sum.exact);
    for (size_t i = first; i < std::min(first + kStep, a.size()); ++i) {
      const double product = double{a[i]} * b[i];
      sum.exact += product;
      largest = std::max(largest, std::abs(product));
    }
    sum.slack += 0x1p-13 * std::max(largest, std::abs(sum.exact));
  }
  return sum;
}

}  // namespace

Result<std::vector<KernelRow>> KernelCases::float8_products(int64_t num_rows) {
  std::vector<KernelRow> rows;
  for (const auto& linear : kLinearLayers) {
    MR_ASSIGN_OR_RETURN(const auto a, Float8Operand::create(*device_, num_rows, linear.num_inputs));
    MR_ASSIGN_OR_RETURN(const auto b,
                        Float8Operand::create(*device_, linear.num_outputs, linear.num_inputs));
    MR_ASSIGN_OR_RETURN(const auto result, device_->allocate(num_rows * linear.num_outputs * 4));
    const kernels::Float8GemmParams params{
        .a = a.view(),
        .b = b.view(),
        .c = kernels::dense_matrix(result.data(), DType::kFloat32, num_rows, linear.num_outputs)};
    KernelRow row{.name = "float8-product", .setting = linear.name, .num_tokens = num_rows};
    if (options_.check) {
      device_->float8_gemm(params);
      MR_ASSIGN_OR_RETURN(auto output, check_float8(params));
      row.checks.push_back(std::move(output));
    }
    MR_ASSIGN_OR_RETURN(auto gemm, time("gemm", [&] { device_->float8_gemm(params); }));
    gemm.flops = 2.0 * static_cast<double>(num_rows * linear.num_outputs * linear.num_inputs);
    row.parts.push_back(std::move(gemm));
    MR_ASSIGN_OR_RETURN(auto quantize,
                        time("quantize", [&] { device_->float8_quantize(a.quantize()); }));
    quantize.bytes = 3.0 * static_cast<double>(num_rows * linear.num_inputs);
    row.parts.push_back(std::move(quantize));
    rows.push_back(std::move(row));
  }
  MR_ASSIGN_OR_RETURN(rows.emplace_back(), float8_swiglu(num_rows));
  return rows;
}

Result<KernelRow> KernelCases::float8_swiglu(int64_t num_rows) {
  MR_ASSIGN_OR_RETURN(const auto a, Float8Operand::create(*device_, num_rows, kHidden));
  MR_ASSIGN_OR_RETURN(const auto gate_up, Float8Operand::create(*device_, 2 * kFfn, kHidden));
  MR_ASSIGN_OR_RETURN(const auto result, device_->allocate(num_rows * kFfn * 2));
  MR_ASSIGN_OR_RETURN(
      const auto products,
      device_->allocate(device_->info().fuses_swiglu ? 0 : num_rows * 2 * kFfn * 4));
  const kernels::Float8SwigluParams params{
      .a = a.view(),
      .gate_up = gate_up.view(),
      .products = products.as<float>(),
      .out = kernels::dense_matrix(result.data(), DType::kBFloat16, num_rows, kFfn)};
  KernelRow row{.name = "float8-product", .setting = "swiglu", .num_tokens = num_rows};
  MR_ASSIGN_OR_RETURN(auto part, time("swiglu", [&] { device_->float8_swiglu(params); }));
  part.flops = 2.0 * static_cast<double>(num_rows * 2 * kFfn * kHidden);
  row.parts.push_back(std::move(part));
  return row;
}

Result<CheckResult> KernelCases::check_float8(const kernels::Float8GemmParams& params) {
  constexpr uint64_t kSamples = 32;
  CheckResult result{.what = "output"};
  for (uint64_t i = 0; i < kSamples; ++i) {
    const auto pick = [i](uint64_t seed, int64_t count) {
      return static_cast<int64_t>(model::mixed_bits(seed, i) % static_cast<uint64_t>(count));
    };
    const int64_t row = pick(1, params.c.rows), col = pick(2, params.c.cols);
    MR_ASSIGN_OR_RETURN(const auto a, read_float8_row(*device_, params.a, row));
    MR_ASSIGN_OR_RETURN(const auto b, read_float8_row(*device_, params.b, col));
    const Dot expected = dot(a, b);
    float computed = 0;
    device_->copy(&computed,
                  static_cast<const float*>(params.c.data) + row * params.c.row_stride + col,
                  sizeof computed);
    MR_RETURN_IF_ERROR(device_->synchronize(Deadline::after(kCopyTimeout)));
    result.allowed = std::max(result.allowed, expected.slack);
    const double error = std::abs(computed - expected.exact);
    if (error <= result.error) continue;
    result.error = error;
    result.where = fmt::format("row {} column {}", row, col);
  }
  return result;
}

}  // namespace millrace::bench
