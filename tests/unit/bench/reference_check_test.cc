// SPDX-License-Identifier: Apache-2.0
// A check that passes whatever a kernel does is worse than none, so each check is shown a wrong
// result.
#include "bench/millrace_bench/kernels/reference_check.h"

#include <gtest/gtest.h>

#include <array>

#include "bench/millrace_bench/kernels/case_shapes.h"
#include "kernels/cpu/cpu_device.h"

namespace millrace::bench {
namespace {

constexpr int32_t kHead = 3;  // the last: checks look at the first and the last

class ReferenceCheck : public testing::Test {
 protected:
  ReferenceCheck()
      : device_(kernels::make_cpu_device({.num_threads = 2})),
        layer_(*SampleLayer::create(
            *device_,
            {.num_tokens = 1000, .num_query_heads = 4, .num_kv_heads = 2, .head_dim = 64})) {}

  // Block lists of all heads, with room for everything.
  BenchIndex blocks() {
    int64_t causal = 0;
    for (const auto& tile : layer_.tiles()) causal += tile.position / 64 + 1;
    return *BenchIndex::create(*device_, {.num_heads = 4,
                                          .max_bands = 1,
                                          .max_columns = 1,
                                          .num_tiles = std::ssize(layer_.tiles()),
                                          .max_blocks = causal});
  }

  std::unique_ptr<kernels::Device> device_;
  SampleLayer layer_;
  std::vector<int32_t> heads_ = {0, 1, 2, 3};
};

TEST_F(ReferenceCheck, SeesAWrongOutput) {
  HostIndex lists({.num_heads = 4, .max_bands = 64, .max_columns = 100});
  for (const int32_t h : heads_) {
    lists.set(h, vertical_slash_lists(1000, 50, 200, static_cast<uint64_t>(h)));
  }
  device_->attention(layer_.attention(lists.view()));
  const auto right = check_attention(*device_, layer_, lists, 0);
  ASSERT_TRUE(right.ok());
  EXPECT_TRUE(right->ok()) << right->error << " of " << right->allowed;

  // One element of the last row of the last head.
  auto* out = static_cast<BFloat16*>(layer_.out());
  BFloat16& element = out[(999 * 4 + kHead) * 64 + 10];
  element = to_bfloat16(to_float(element) + 0.1F);
  const auto wrong = check_attention(*device_, layer_, lists, 0);
  ASSERT_TRUE(wrong.ok());
  EXPECT_FALSE(wrong->ok());
  EXPECT_EQ(wrong->where, "head 3 row 999, 1 of 20 rows");
  element = {0x7fc0};  // NaN
  EXPECT_FALSE(check_attention(*device_, layer_, lists, 0)->ok());
}

TEST_F(ReferenceCheck, SeesAnOutputOfAnotherIndex) {
  HostIndex lists({.num_heads = 4, .max_bands = 64, .max_columns = 100});
  for (const int32_t h : heads_) lists.set(h, vertical_slash_lists(1000, 50, 200, 1));
  device_->attention(layer_.attention(lists.view()));
  for (const int32_t h : heads_) lists.set(h, vertical_slash_lists(1000, 50, 100, 2));
  EXPECT_FALSE(check_attention(*device_, layer_, lists, 0)->ok());
}

TEST_F(ReferenceCheck, SeesWrongSumsAndLists) {
  const auto last = layer_.last_rows();
  std::vector<float> columns(4000), diagonals(4000), lse(4 * 64);
  device_->last_row_sums({.last = last,
                          .kv = layer_.kv(),
                          .heads = heads_,
                          .column_sums = columns.data(),
                          .diagonal_sums = diagonals.data(),
                          .lse = lse.data()});
  const LastRowSumsOutput output{.column_sums = columns.data() + kHead * 1000,
                                 .diagonal_sums = diagonals.data() + kHead * 1000,
                                 .lse = lse.data() + kHead * 64};
  EXPECT_TRUE(check_last_row_sums(*device_, layer_, kHead, output)->ok());

  const kernels::VerticalSlashBudget budget{40, 150};
  auto index = *BenchIndex::create(*device_, list_shape(layer_.shape(), budget));
  const std::vector budgets(4, budget);
  device_->build_vertical_slash({.column_sums = columns.data(),
                                 .diagonal_sums = diagonals.data(),
                                 .num_tokens = 1000,
                                 .heads = heads_,
                                 .budgets = budgets,
                                 .index = index.view()});
  const auto check = [&] {
    return check_vertical_slash(*device_, layer_, kHead, budget, output, *index.download(*device_));
  };
  EXPECT_TRUE(check()->ok());
  ++index.view().columns[kHead * index.view().shape.max_columns + 35];
  EXPECT_FALSE(check()->ok());

  lse[kHead * 64 + 63] += 0.01F;
  EXPECT_FALSE(check_last_row_sums(*device_, layer_, kHead, output)->ok());
}

TEST_F(ReferenceCheck, SeesWrongBlocks) {
  auto index = blocks();
  constexpr int32_t kTop = 4;
  const std::vector top(4, kTop);
  device_->build_block_sparse({.q = layer_.q(),
                               .num_query_heads = 4,
                               .kv = layer_.kv(),
                               .tiles = layer_.tiles(),
                               .heads = heads_,
                               .top_k = top,
                               .index = index.view()});
  const auto check = [&] {
    return check_block_sparse(*device_, layer_, kHead, kTop, *index.download(*device_));
  };
  EXPECT_TRUE(check()->ok());
  const auto& view = index.view();
  const int64_t last_tile = view.shape.num_tiles - 1;
  --view.block_count[kHead * view.shape.num_tiles + last_tile];
  EXPECT_FALSE(check()->ok());
}

TEST_F(ReferenceCheck, SeesBlocksOfAnotherGamma) {
  auto index = blocks();
  const AdaptiveSetting setting{.rule = {.gamma = 0.5F}, .sampled_rows = 8};
  const std::vector rules(4, setting.rule);
  device_->build_adaptive({.q = layer_.q(),
                           .num_query_heads = 4,
                           .scale = layer_.scale(),
                           .kv = layer_.kv(),
                           .tiles = layer_.tiles(),
                           .heads = heads_,
                           .rules = rules,
                           .sampled_rows = 8,
                           .index = index.view()});
  const auto host = *index.download(*device_);
  EXPECT_TRUE(check_adaptive(*device_, layer_, kHead, setting, host)->ok());
  auto other = setting;
  other.rule.gamma = 0.95F;
  EXPECT_FALSE(check_adaptive(*device_, layer_, kHead, other, host)->ok());
}

}  // namespace
}  // namespace millrace::bench
