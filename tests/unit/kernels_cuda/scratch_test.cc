// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/scratch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/cuda/runtime/check.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

class ScratchTest : public GpuCase {};

TEST_F(ScratchTest, UploadedArraysArriveWholeInTheOrderOfTheCalls) {
  // Larger than the pinned ring, so that every chunk is used more than once.
  std::vector<int64_t> values(3 << 20);
  std::iota(values.begin(), values.end(), 7);
  DeviceArray<int64_t> out(static_cast<int64_t>(values.size()));
  run([&](Context& context) {
    std::vector<int64_t> gone = values;
    const int64_t* uploaded = context.scratch.upload(std::span(gone));
    std::fill(gone.begin(), gone.end(), -1);
    MR_CUDA_CHECK(cudaMemcpyAsync(out.data(), uploaded, values.size() * sizeof(int64_t),
                                  cudaMemcpyDeviceToDevice, context.stream));
  });
  EXPECT_EQ(out.values(), values);
  EXPECT_TRUE(out.guards_intact());
}

TEST_F(ScratchTest, BlocksOfOneOperationDoNotOverlap) {
  run([&](Context& context) {
    auto* first = context.scratch.allocate<char>(1000);
    auto* second = context.scratch.allocate<char>(1000);
    EXPECT_TRUE(first + 1000 <= second || second + 1000 <= first);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 256, 0);
  });
}

TEST_F(ScratchTest, NothingIsAllocatedForACountOfZero) {
  run([](Context& context) { EXPECT_EQ(context.scratch.allocate<int>(0), nullptr); });
}

TEST_F(ScratchTest, MoreThanTheDeviceHasThrowsWithTheCall) {
  run([](Context& context) {
    try {
      context.scratch.allocate<char>(int64_t{1} << 50);
      FAIL() << "a petabyte was allocated";
    } catch (const CudaError& error) {
      EXPECT_NE(std::string(error.what()).find("cudaMallocFromPoolAsync"), std::string::npos);
    }
    cudaGetLastError();
  });
}

}  // namespace
}  // namespace millrace::kernels::cuda
