// SPDX-License-Identifier: Apache-2.0
// MR_CUDA_CHECK throws CudaError if a CUDA call fails, which ends the rank: the device is in an
// unknown state. It is not used where running out of memory is an expected outcome
// (CudaDevice::allocate).
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace millrace::kernels::cuda {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const char* call, std::source_location where);
  // For a library on top of the runtime; `reason` is its name for the status.
  CudaError(const std::string& reason, const char* call, std::source_location where);
};

inline void check(cudaError_t code, const char* call,
                  std::source_location where = std::source_location::current()) {
  if (code != cudaSuccess) [[unlikely]] {
    throw CudaError(code, call, where);
  }
}

}  // namespace millrace::kernels::cuda

#define MR_CUDA_CHECK(expr) ::millrace::kernels::cuda::check((expr), #expr)
// After a <<<>>> launch: checks for errors of the launch itself (too much shared memory, a bad
// grid). Errors inside the kernel appear at the next call that waits.
#define MR_CUDA_CHECK_LAUNCH() ::millrace::kernels::cuda::check(cudaGetLastError(), "kernel launch")
