// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "common/units.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

class PageDigests : public GpuCase {
 protected:
  void expect_digests(int64_t num_tokens, int32_t head_dim) {
    SCOPED_TRACE(testing::Message() << num_tokens << " tokens of " << head_dim);
    // Rounded to bfloat16 and multiples of 2^-24, so that all element types hold them.
    const auto k = test::widen(test::narrow(test::random_normals(1, num_tokens * head_dim)));
    const int64_t count = ceil_div(num_tokens, kPageTokens) * head_dim;
    std::vector<float> min(static_cast<size_t>(count)), max(min), radius(min);
    PageDigestParams params = {.k = k.data(),
                               .dtype = DType::kFloat32,
                               .num_tokens = num_tokens,
                               .head_dim = head_dim,
                               .min = min.data(),
                               .max = max.data(),
                               .radius = radius.data()};
    ref::page_digests(params);

    const DeviceArray<BFloat16> device_bf16(test::narrow(k));
    const DeviceArray<Float16> device_f16(test::narrow_to_float16(k));
    const DeviceArray<float> device_f32(k);
    const std::pair<DType, const void*> keys[] = {{DType::kFloat32, device_f32.data()},
                                                  {DType::kBFloat16, device_bf16.data()},
                                                  {DType::kFloat16, device_f16.data()}};
    for (const auto& [dtype, data] : keys) {
      DeviceArray<float> device_min(count), device_max(count), device_radius(count);
      params.k = data;
      params.dtype = dtype;
      params.min = device_min.data();
      params.max = device_max.data();
      params.radius = device_radius.data();
      run([&](Context& context) { page_digests(params, context); });
      EXPECT_TRUE(test::bitwise_equal(device_min.values(), min));
      EXPECT_TRUE(test::bitwise_equal(device_max.values(), max));
      // A sum of up to 64 terms below 16, each rounded once, divided by their number.
      EXPECT_TRUE(test::within(device_radius.values(), radius, 1e-5));
      EXPECT_TRUE(device_min.guards_intact() && device_max.guards_intact() &&
                  device_radius.guards_intact());
    }
  }
};

TEST_F(PageDigests, MatchTheReferenceWithAPartialLastPage) {
  for (const int64_t num_tokens : {1, 63, 64, 65, 127, 257}) {
    for (const int32_t head_dim : {1, 31, 64, 128, 200}) expect_digests(num_tokens, head_dim);
  }
}

TEST_F(PageDigests, NoTokensNoPages) {
  run([](Context& context) { page_digests({.dtype = DType::kBFloat16, .head_dim = 8}, context); });
}

}  // namespace
}  // namespace millrace::kernels::cuda
