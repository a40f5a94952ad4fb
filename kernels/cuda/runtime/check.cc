// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/check.h"

#include <fmt/format.h>

namespace millrace::kernels::cuda {
namespace {

std::string describe(const std::string& reason, const char* call, std::source_location where) {
  return fmt::format("{}: {} ({}:{})", call, reason, where.file_name(), where.line());
}

}  // namespace

CudaError::CudaError(cudaError_t code, const char* call, std::source_location where)
    : std::runtime_error(describe(
          fmt::format("{}, {}", cudaGetErrorName(code), cudaGetErrorString(code)), call, where)) {}

CudaError::CudaError(const std::string& reason, const char* call, std::source_location where)
    : std::runtime_error(describe(reason, call, where)) {}

}  // namespace millrace::kernels::cuda
