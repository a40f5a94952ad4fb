// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels_cuda/gpu_case.h"

#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {

void GpuCase::SetUp() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    GTEST_SKIP() << "no GPU: " << cudaGetErrorString(found);
  }
  cudaDeviceProp properties{};
  MR_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  if (properties.major != 9) {
    GTEST_SKIP() << properties.name << " is no Hopper GPU, which these kernels are built for";
  }
  num_sms_ = properties.multiProcessorCount;
  l2_bytes_ = properties.l2CacheSize;
  MR_CUDA_CHECK(cudaSetDevice(0));
  MR_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  pool_ = std::make_unique<MemoryPool>(0);
  ring_ = std::make_unique<UploadRing>(stream_);
}

void GpuCase::TearDown() {
  if (stream_ == nullptr) return;
  ring_.reset();
  pool_.reset();
  cudaStreamDestroy(stream_);
}

void GpuCase::synchronize() {
  MR_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

}  // namespace millrace::kernels::cuda
