// SPDX-License-Identifier: Apache-2.0
// What every CUDA operation needs besides its parameters.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/runtime/scratch.h"

namespace millrace::kernels::cuda {

struct Context {
  cudaStream_t stream = nullptr;
  int num_sms = 0;
  int64_t l2_bytes = 0;
  Scratch& scratch;  // this operation's own
};

}  // namespace millrace::kernels::cuda
