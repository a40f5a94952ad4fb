// SPDX-License-Identifier: Apache-2.0
// A CUDA call of this folder that failed.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <stdexcept>

namespace millrace::comm {

class CudaFailure : public std::runtime_error {
 public:
  CudaFailure(cudaError_t code, const char* call)
      : std::runtime_error(fmt::format("{}: {}", call, cudaGetErrorString(code))) {}
};

inline void check(cudaError_t code, const char* call) {
  if (code != cudaSuccess) [[unlikely]] {
    throw CudaFailure(code, call);
  }
}

}  // namespace millrace::comm
