// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "bench/millrace_bench/kernels/case_shapes.h"
#include "bench/millrace_bench/kernels/kernel_cases.h"
#include "bench/millrace_bench/kernels/random_fill.h"
#include "common/units.h"
#include "model/checkpoint/element_conversion.h"
#include "model/synthetic/synthetic_random.h"

namespace millrace::bench {

namespace {

constexpr auto kCopyTimeout = std::chrono::minutes(1);

// Elements [first, first + count) of a matrix in device memory without gaps between its rows.
Result<std::vector<float>> read_elements(kernels::Device& device,
                                         const kernels::ConstMatrix& matrix, int64_t first,
                                         int64_t count) {
  std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(matrix.dtype)));
  const auto* source = static_cast<const std::byte*>(matrix.data);
  device.copy(bytes.data(), source + first * dtype_bytes(matrix.dtype), std::ssize(bytes));
  MR_RETURN_IF_ERROR(device.synchronize(Deadline::after(kCopyTimeout)));
  std::vector<float> values(static_cast<size_t>(count));
  model::convert_elements(bytes.data(), matrix.dtype, count, values.data(), DType::kFloat32);
  return values;
}

// Row `row` of a matrix without gaps between its rows.
Result<std::vector<float>> read_row(kernels::Device& device, const kernels::ConstMatrix& matrix,
                                    int64_t row) {
  return read_elements(device, matrix, row * matrix.cols, matrix.cols);
}

// One element of a product, in double and by a naive loop in float32.
struct Element {
  double exact = 0;
  float naive = 0;
  double slack = 0;  // allowed beyond twice the naive loop's error
};

Element dot(const std::vector<float>& a, const std::vector<float>& b, DType dtype) {
  Element sum;
  for (size_t j = 0; j < a.size(); ++j) {
    sum.exact += double{a[j]} * b[j];
    sum.naive += a[j] * b[j];
  }
  // Tensor cores add products in groups of 16 and each time cut off about 2^-24 of the partial sum.
  // These errors have one sign and add up, unlike the roundings of a float32 sum.
  if (dtype != DType::kFloat32) {
    sum.slack = static_cast<double>(a.size()) / 16 * 0x1p-24 * std::abs(sum.exact);
  }
  return sum;
}

Result<Element> exact_element(kernels::Device& device, const kernels::GemmParams& params,
                              int64_t row, int64_t col) {
  MR_ASSIGN_OR_RETURN(const auto a, read_row(device, params.a, row));
  MR_ASSIGN_OR_RETURN(const auto b, read_row(device, params.b, col));
  return dot(a, b, params.a.dtype);
}

Result<Element> exact_element(kernels::Device& device, const kernels::SwigluParams& params,
                              int64_t row, int64_t col) {
  MR_ASSIGN_OR_RETURN(const auto a, read_row(device, params.a, row));
  MR_ASSIGN_OR_RETURN(const auto gate_row, read_row(device, params.gate_up, col));
  MR_ASSIGN_OR_RETURN(const auto up_row, read_row(device, params.gate_up, params.out.cols + col));
  const Element gate = dot(a, gate_row, params.a.dtype), up = dot(a, up_row, params.a.dtype);
  const double silu = gate.exact / (1 + std::exp(-gate.exact));
  constexpr double kSteepest = 1.1;  // the steepest slope of SiLU
  return Element{.exact = silu * up.exact,
                 .naive = gate.naive / (1 + std::exp(-gate.naive)) * up.naive,
                 .slack = kSteepest * gate.slack * std::abs(up.exact) + up.slack * std::abs(silu)};
}

// Checks sampled elements of `output`. The allowed error is twice that of a naive float32 loop
// whose result is rounded as the output is.
template <typename Params>
Result<CheckResult> check_samples(kernels::Device& device, const Params& params,
                                  const kernels::ConstMatrix& output) {
  constexpr uint64_t kSamples = 32;
  CheckResult result{.what = "output"};
  for (uint64_t i = 0; i < kSamples; ++i) {
    const auto pick = [i](uint64_t seed, int64_t count) {
      return static_cast<int64_t>(model::mixed_bits(seed, i) % static_cast<uint64_t>(count));
    };
    const int64_t row = pick(1, output.rows), col = pick(2, output.cols);
    MR_ASSIGN_OR_RETURN(const Element element, exact_element(device, params, row, col));
    MR_ASSIGN_OR_RETURN(const auto computed,
                        read_elements(device, output, row * output.cols + col, 1));
    const float naive = rounded_to(output.dtype, element.naive);
    result.allowed = std::max(result.allowed, 2 * std::abs(naive - element.exact) + element.slack);
    const double error = std::abs(computed.front() - element.exact);
    if (error <= result.error) continue;
    result.error = error;
    result.where = fmt::format("row {} column {}", row, col);
  }
  return result;
}

}  // namespace

Result<std::vector<KernelRow>> KernelCases::products(int64_t num_rows, DType dtype) {
  std::vector<KernelRow> rows;
  for (const auto& linear : kLinearLayers) {
    const auto count = num_rows * linear.num_inputs + linear.num_outputs * linear.num_inputs;
    MR_ASSIGN_OR_RETURN(const auto operands, device_->allocate(count * dtype_bytes(dtype)));
    MR_ASSIGN_OR_RETURN(const auto result, device_->allocate(num_rows * linear.num_outputs * 4));
    MR_RETURN_IF_ERROR(fill_with_normals(*device_, operands.data(), dtype, count));
    const auto* a = operands.as<const std::byte>();
    const auto* b = a + num_rows * linear.num_inputs * dtype_bytes(dtype);
    const DType c_dtype = device_->info().projection_dtype(dtype);
    const kernels::GemmParams params{
        .a = kernels::dense_matrix(static_cast<const void*>(a), dtype, num_rows, linear.num_inputs),
        .b = kernels::dense_matrix(static_cast<const void*>(b), dtype, linear.num_outputs,
                                   linear.num_inputs),
        .c = kernels::dense_matrix(result.data(), c_dtype, num_rows, linear.num_outputs)};
    KernelRow row{.name = "product", .setting = linear.name, .num_tokens = num_rows};
    if (options_.check) {
      device_->gemm(params);
      MR_ASSIGN_OR_RETURN(auto output, check_samples(*device_, params, params.c));
      row.checks.push_back(std::move(output));
    }
    MR_ASSIGN_OR_RETURN(auto part, time("gemm", [&] { device_->gemm(params); }));
    part.flops = 2.0 * static_cast<double>(num_rows * linear.num_outputs * linear.num_inputs);
    row.parts.push_back(std::move(part));
    rows.push_back(std::move(row));
  }
  MR_ASSIGN_OR_RETURN(rows.emplace_back(), swiglu(num_rows, dtype));
  return rows;
}

// To be compared with gate+up, whose product it includes.
Result<KernelRow> KernelCases::swiglu(int64_t num_rows, DType dtype) {
  const int64_t count = (num_rows + 2 * kFfn) * kHidden;
  MR_ASSIGN_OR_RETURN(const auto operands, device_->allocate(count * dtype_bytes(dtype)));
  MR_ASSIGN_OR_RETURN(const auto result, device_->allocate(num_rows * kFfn * dtype_bytes(dtype)));
  MR_ASSIGN_OR_RETURN(
      const auto products,
      device_->allocate(device_->info().fuses_swiglu ? 0 : num_rows * 2 * kFfn * 4));
  MR_RETURN_IF_ERROR(fill_with_normals(*device_, operands.data(), dtype, count));
  const auto* a = operands.as<const std::byte>();
  const auto* weight = a + num_rows * kHidden * dtype_bytes(dtype);
  const kernels::SwigluParams params{
      .a = kernels::dense_matrix(static_cast<const void*>(a), dtype, num_rows, kHidden),
      .gate_up = kernels::dense_matrix(static_cast<const void*>(weight), dtype, 2 * kFfn, kHidden),
      .products = products.as<float>(),
      .out = kernels::dense_matrix(result.data(), dtype, num_rows, kFfn)};
  KernelRow row{.name = "product", .setting = "swiglu", .num_tokens = num_rows};
  if (options_.check) {
    device_->swiglu(params);
    MR_ASSIGN_OR_RETURN(auto output, check_samples(*device_, params, params.out));
    row.checks.push_back(std::move(output));
  }
  MR_ASSIGN_OR_RETURN(auto part, time("swiglu", [&] { device_->swiglu(params); }));
  part.flops = 2.0 * static_cast<double>(num_rows * 2 * kFfn * kHidden);
  row.parts.push_back(std::move(part));
  return row;
}

Result<KernelRow> KernelCases::memory_copy(int64_t bytes) {
  MR_ASSIGN_OR_RETURN(const auto source, device_->allocate(bytes));
  MR_ASSIGN_OR_RETURN(const auto destination, device_->allocate(bytes));
  KernelRow row{.name = "copy", .setting = format_bytes(bytes)};
  MR_ASSIGN_OR_RETURN(
      auto part, time("device", [&] { device_->copy(destination.data(), source.data(), bytes); }));
  part.bytes = 2.0 * static_cast<double>(bytes);
  row.parts.push_back(std::move(part));
  return row;
}

}  // namespace millrace::bench
