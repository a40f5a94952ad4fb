// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/estimation/page_scores_case.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

class PageScores : public GpuCase {
 protected:
  std::vector<float> score(EstimationCase& c, const std::vector<int32_t>& heads,
                           const std::vector<float>& lse, int64_t window = 0) {
    const DeviceLayer layer(c);
    const DeviceArray<float> device_lse(lse);
    DeviceArray<float> pages(std::ssize(heads) * num_pages_of(c));
    run([&](Context& context) {
      page_scores({.last = layer.last(),
                   .kv = layer.kv(),
                   .lse = device_lse.data(),
                   .window = window,
                   .heads = heads,
                   .page_scores = pages.data()},
                  context);
    });
    EXPECT_TRUE(pages.guards_intact());
    return pages.values();
  }
};

class PageScoresIn : public PageScores, public testing::WithParamInterface<DType> {};
MR_INSTANTIATE_NARROW(PageScoresIn);

TEST_P(PageScoresIn, FollowTheReference) {
  for (const int64_t num_tokens : {1, 63, 64, 65, 127, 130, 1000, 1024, 1025, 4099}) {
    for (const int32_t head_dim : {num_tokens % 2 == 0 ? 64 : 128, 256}) {
      SCOPED_TRACE(num_tokens);
      EstimationCase c({.num_tokens = num_tokens,
                        .num_query_heads = 6,
                        .num_kv_heads = 2,
                        .head_dim = head_dim,
                        .dtype = GetParam()},
                       static_cast<uint64_t>(50 + num_tokens));
      const std::vector<int32_t> heads = {5, 0, 3, 2};
      const auto lse = dense_lse(c, heads);
      const auto expected = scores_on_host(c, heads, lse, ref::page_scores);
      const auto actual = score(c, heads, lse);
      // 64 x 64 terms of a page. Each is off by at most 2^-20 of itself: the rounding of the score
      // (of magnitude below 16) and of the power of two. Scores are at most 1.
      EXPECT_TRUE(test::within(actual, expected, 1.0 / (1 << 18)));
    }
  }
}

// Chunks have 1,024 keys. Windows begin in the last one, at its end, and in others.
TEST_P(PageScoresIn, CountOnlyWhatTheWindowLetsARowSee) {
  for (const int64_t num_tokens : {1, 64, 65, 130, 1100, 4099}) {
    for (const int64_t window : {1, 40, 64, 100, 1024, 3000, 5000}) {
      for (const int32_t head_dim : {window % 3 == 1 ? 64 : 128, 256}) {
        SCOPED_TRACE(testing::Message() << num_tokens << " tokens, window " << window);
        EstimationCase c({.num_tokens = num_tokens,
                          .num_query_heads = 6,
                          .num_kv_heads = 2,
                          .head_dim = head_dim,
                          .dtype = GetParam()},
                         static_cast<uint64_t>(60 + num_tokens));
        const std::vector<int32_t> heads = {5, 0, 2};
        const auto lse = window_lse(c, heads, window);
        const auto expected = scores_on_host(c, heads, lse, ref::page_scores, window);
        const auto actual = score(c, heads, lse, window);
        // As above. The log-sum-exp is that of elements before they are rounded; both take it as it
        // is.
        EXPECT_TRUE(test::within(actual, expected, 1.0 / (1 << 18)));
        for (size_t i = 0; i < expected.size(); ++i) {
          if (expected[i] == 0) {
            ASSERT_EQ(actual[i], 0) << i;
          }
        }
      }
    }
  }
}

TEST_F(PageScores, GiveTheSameBitsInEveryRunAndForAnySubsetOfHeads) {
  EstimationCase c({.num_tokens = 2500,
                    .num_query_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 64,
                    .dtype = DType::kBFloat16},
                   57);
  const auto all_lse = dense_lse(c, c.all_heads());
  const auto all = score(c, c.all_heads(), all_lse);
  EXPECT_TRUE(test::bitwise_equal(score(c, c.all_heads(), all_lse), all));
  for (const int32_t head : c.all_heads()) {
    const auto one = score(c, {head}, dense_lse(c, std::vector{head}));
    const auto pages = std::span(all).subspan(static_cast<size_t>(head) * 40, 40);
    EXPECT_TRUE(test::bitwise_equal(one, pages));
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
