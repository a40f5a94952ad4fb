#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "bench/millrace_bench/kernel_cases.h"
#include "bench/millrace_bench/random_fill.h"
#include "common/units.h"
#include "model/element_conversion.h"
#include "model/synthetic_random.h"

namespace millrace::bench {

namespace {

constexpr auto kCopyTimeout = std::chrono::minutes(1);

// Elements [first, first + count) of a matrix in device memory that has no gaps.
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

// Tensor cores add products in groups of 16 and cut off about 2^-24 of the partial sum each time.
// These errors have one sign and add up, which the roundings of a float32 sum do not.
double truncation(const kernels::GemmParams& params, double sum) {
  if (params.a.dtype == DType::kFloat32) return 0;
  return static_cast<double>(params.a.cols) / 16 * 0x1p-24 * std::abs(sum);
}

// Sampled elements of c; twice the error of a float32 sum, rounded as c is, is allowed.
Result<CheckResult> check_product(kernels::Device& device, const kernels::GemmParams& params) {
  constexpr uint64_t kSamples = 32;
  CheckResult result{.what = "output"};
  for (uint64_t i = 0; i < kSamples; ++i) {
    const auto pick = [i](uint64_t seed, int64_t count) {
      return static_cast<int64_t>(model::mixed_bits(seed, i) % static_cast<uint64_t>(count));
    };
    const int64_t row = pick(1, params.c.rows), col = pick(2, params.c.cols), k = params.a.cols;
    MR_ASSIGN_OR_RETURN(const auto a, read_elements(device, params.a, row * k, k));
    MR_ASSIGN_OR_RETURN(const auto b, read_elements(device, params.b, col * k, k));
    MR_ASSIGN_OR_RETURN(const auto c,
                        read_elements(device, params.c, row * params.c.cols + col, 1));
    double exact = 0;
    float naive = 0;
    for (size_t j = 0; j < a.size(); ++j) {
      exact += double{a[j]} * b[j];
      naive += a[j] * b[j];
    }
    naive = rounded_to(params.c.dtype, naive);
    result.allowed =
        std::max(result.allowed, 2 * std::abs(naive - exact) + truncation(params, exact));
    const double error = std::abs(c.front() - exact);
    if (error <= result.error) continue;
    result.error = error;
    result.where = fmt::format("row {} column {}", row, col);
  }
  return result;
}

}  // namespace

Result<std::vector<KernelRow>> KernelCases::products(int64_t num_rows, DType dtype) {
  struct Linear {
    const char* name;
    int64_t num_outputs, num_inputs;
  };
  constexpr std::array<Linear, 4> kLayers{
      {{"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate+up", 28672, 4096}, {"down", 4096, 14336}}};
  std::vector<KernelRow> rows;
  for (const auto& linear : kLayers) {
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
      MR_ASSIGN_OR_RETURN(auto output, check_product(*device_, params));
      row.checks.push_back(std::move(output));
    }
    MR_ASSIGN_OR_RETURN(auto part, time("gemm", [&] { device_->gemm(params); }));
    part.flops = 2.0 * static_cast<double>(num_rows * linear.num_outputs * linear.num_inputs);
    row.parts.push_back(std::move(part));
    rows.push_back(std::move(row));
  }
  return rows;
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
