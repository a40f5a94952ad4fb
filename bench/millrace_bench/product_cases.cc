#include <array>

#include "bench/millrace_bench/kernel_cases.h"
#include "bench/millrace_bench/random_fill.h"
#include "common/units.h"

namespace millrace::bench {

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
    const auto c_dtype = dtype == DType::kFloat32 ? dtype : device_->info().projection_dtype;
    const kernels::GemmParams params{
        .a = kernels::dense_matrix(static_cast<const void*>(a), dtype, num_rows, linear.num_inputs),
        .b = kernels::dense_matrix(static_cast<const void*>(b), dtype, linear.num_outputs,
                                   linear.num_inputs),
        .c = kernels::dense_matrix(result.data(), c_dtype, num_rows, linear.num_outputs)};
    KernelRow row{.name = "product", .setting = linear.name, .num_tokens = num_rows};
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
