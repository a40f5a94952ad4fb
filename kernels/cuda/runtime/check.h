// MR_CUDA_CHECK: a CUDA call that fails leaves the device in an unknown state, so it throws
// CudaError, which ends the rank. Running out of memory where that is an expected outcome is not
// checked with this (CudaDevice::allocate).
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace millrace::kernels::cuda {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t code, const char* call, std::source_location where);
  // A library on top of the runtime; `reason` is its word for the status.
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
// After a <<<>>> launch: the launch's own errors (too much shared memory, a bad grid). What happens
// inside the kernel shows at the next call that waits.
#define MR_CUDA_CHECK_LAUNCH() ::millrace::kernels::cuda::check(cudaGetLastError(), "kernel launch")
