// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "common/units.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/index/tiling.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/contexts.h"

namespace millrace::kernels {
namespace {

using cpu::Context;
using test::GuardedBuffer;

struct Digests {
  Digests(int64_t num_tokens, int32_t head_dim)
      : min(ceil_div(num_tokens, kPageTokens) * head_dim), max(min), radius(min) {}

  PageDigestParams params(const void* k, DType dtype, int64_t num_tokens, int32_t head_dim) {
    return {.k = k,
            .dtype = dtype,
            .num_tokens = num_tokens,
            .head_dim = head_dim,
            .min = min.data(),
            .max = max.data(),
            .radius = radius.data()};
  }

  GuardedBuffer<float> min;
  GuardedBuffer<float> max;
  GuardedBuffer<float> radius;
};

// Radius as the obvious float32 loop computes it.
std::vector<float> naive_radius(const std::vector<float>& k, int64_t num_tokens, int64_t dim,
                                Digests& extremes) {
  std::vector<float> radius(extremes.min.values().size());
  for (size_t at = 0; at < radius.size(); ++at) {
    const int64_t first = static_cast<int64_t>(at) / dim * kPageTokens;
    const int64_t last = std::min(first + kPageTokens, num_tokens);
    const float centre = (extremes.min.span()[at] + extremes.max.span()[at]) / 2;
    for (int64_t t = first; t < last; ++t) {
      radius[at] += std::abs(k[t * dim + static_cast<int64_t>(at) % dim] - centre);
    }
    radius[at] /= static_cast<float>(last - first);
  }
  return radius;
}

void expect_digests(int64_t num_tokens, int32_t head_dim) {
  // Rounded to bfloat16, and multiples of 2^-24: all element types hold them.
  const auto k_bf16 = test::narrow(test::random_normals(1, num_tokens * head_dim));
  const auto k = test::widen(k_bf16);
  const auto k_f16 = test::narrow_to_float16(k);
  const std::pair<DType, const void*> keys[] = {{DType::kFloat32, k.data()},
                                                {DType::kBFloat16, k_bf16.data()},
                                                {DType::kFloat16, k_f16.data()}};
  Digests expected(num_tokens, head_dim);
  ref::page_digests(expected.params(k.data(), DType::kFloat32, num_tokens, head_dim));
  const auto naive = naive_radius(k, num_tokens, head_dim, expected);
  const double atol = test::float32_rounding(expected.radius.span());

  for (const Context& context : test::contexts()) {
    SCOPED_TRACE(
        fmt::format("{} tokens of {}, {}", num_tokens, head_dim, test::to_string(context)));
    for (const auto& [dtype, data] : keys) {
      Digests digests(num_tokens, head_dim);
      cpu::page_digests(digests.params(data, dtype, num_tokens, head_dim), context);
      EXPECT_TRUE(test::bitwise_equal(digests.min.span(), expected.min.span()));
      EXPECT_TRUE(test::bitwise_equal(digests.max.span(), expected.max.span()));
      EXPECT_TRUE(
          test::as_good_as_naive(digests.radius.span(), naive, expected.radius.span(), atol));
      EXPECT_TRUE(digests.min.guards_intact() && digests.max.guards_intact() &&
                  digests.radius.guards_intact());
    }
  }
}

TEST(PageDigests, MatchReferenceWithAPartialLastPage) {
  for (int64_t num_tokens : {1, 63, 64, 65, 127, 257}) {
    for (int32_t head_dim : {1, 31, 64, 128}) expect_digests(num_tokens, head_dim);
  }
}

TEST(PageDigests, RadiusOfALonelyTokenIsZero) {
  const std::vector<float> k = {3, -5};
  Digests digests(1, 2);
  cpu::page_digests(digests.params(k.data(), DType::kFloat32, 1, 2),
                    {.num_threads = 1, .simd = cpu::detect_simd()});
  EXPECT_EQ(digests.min.values(), k);
  EXPECT_EQ(digests.max.values(), k);
  EXPECT_EQ(digests.radius.values(), (std::vector<float>{0, 0}));
}

TEST(PageDigests, NoTokensNoPages) {
  Digests digests(0, 8);
  cpu::page_digests(digests.params(nullptr, DType::kBFloat16, 0, 8),
                    {.num_threads = 2, .simd = cpu::detect_simd()});
  EXPECT_TRUE(digests.min.guards_intact());
}

}  // namespace
}  // namespace millrace::kernels
