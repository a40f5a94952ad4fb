// SPDX-License-Identifier: Apache-2.0
// The environment of a test of one CUDA operation: a stream, a pool, and a Context for each call.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>

#include "common/dtype.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/runtime/memory_pool.h"
#include "kernels/cuda/runtime/upload_ring.h"

namespace millrace::kernels::cuda {

// Skips its tests, with the reason, if there is no GPU that these kernels run on.
class GpuCase : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Calls operation(context) with its own scratch, as CudaDevice does, and waits for the device.
  template <typename Operation>
  void run(Operation&& operation) {
    {
      Scratch scratch(stream_, pool_->get(), *ring_);
      Context context{
          .stream = stream_, .num_sms = num_sms_, .l2_bytes = l2_bytes_, .scratch = scratch};
      operation(context);
    }
    synchronize();
  }

  cudaStream_t stream() const { return stream_; }
  void synchronize();

 private:
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<UploadRing> ring_;
  int num_sms_ = 0;
  int64_t l2_bytes_ = 0;
};

// Runs the suite in bfloat16 and in float16; GetParam() is the dtype.
#define MR_INSTANTIATE_NARROW(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(DTypes, suite, testing::Values(DType::kBFloat16, DType::kFloat16), \
                           [](const auto& param) { return std::string(dtype_name(param.param)); })

}  // namespace millrace::kernels::cuda
