// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/bench_index.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/index/tiling.h"

namespace millrace::bench {
namespace {

constexpr int64_t kTokens = 131072;

TEST(VerticalSlashLists, HaveTheBudgetsColumns) {
  const auto lists = vertical_slash_lists(kTokens, 1000, 6096, /*seed=*/1);
  EXPECT_EQ(lists.columns.size(), 1000U);
  EXPECT_TRUE(std::ranges::is_sorted(lists.columns));
  EXPECT_EQ(std::ranges::adjacent_find(lists.columns), lists.columns.end());
  for (int32_t c = 0; c < 30; ++c) EXPECT_EQ(lists.columns[static_cast<size_t>(c)], c);
  EXPECT_LT(lists.columns.back(), kTokens);
}

TEST(VerticalSlashLists, HaveBandsFurtherApartThanARowTile) {
  const auto lists = vertical_slash_lists(kTokens, 1000, 6096, /*seed=*/1);
  EXPECT_EQ(lists.bands.front().lo, 0);
  EXPECT_GE(lists.bands.front().hi, 6096 / 3 - 1);
  int64_t offsets = 0;
  for (size_t i = 0; i < lists.bands.size(); ++i) {
    const auto& band = lists.bands[i];
    EXPECT_LE(band.lo, band.hi);
    EXPECT_LT(band.hi, kTokens);
    offsets += band.hi - band.lo + 1;
    if (i == 0) continue;
    EXPECT_GT(band.lo, lists.bands[i - 1].hi + kernels::kTileRows);
  }
  // 63 runs of 64. Runs that meet cover fewer offsets; gaps shorter than a tile are covered too.
  EXPECT_NEAR(static_cast<double>(offsets), 6096, 300);
}

TEST(VerticalSlashLists, ClampToAShortPrompt) {
  const auto lists = vertical_slash_lists(100, 1000, 6096, /*seed=*/1);
  EXPECT_EQ(lists.columns.size(), 100U);
  EXPECT_EQ(lists.bands, (std::vector<kernels::Band>{{0, 99}}));
}

TEST(BenchIndex, ComesBackAsItWasSent) {
  const auto device = kernels::make_cpu_device({.num_threads = 1});
  HostIndex sent(
      {.num_heads = 2, .max_bands = 3, .max_columns = 4, .num_tiles = 5, .max_blocks = 6});
  sent.set(1, {.bands = {{0, 7}, {100, 130}}, .columns = {1, 5, 9}});
  auto index = BenchIndex::create(*device, sent.view().shape);
  ASSERT_TRUE(index.ok());
  ASSERT_TRUE(index->upload(*device, sent).ok());
  const auto back = index->download(*device);
  ASSERT_TRUE(back.ok());
  const auto head = back->view().head(1);
  ASSERT_EQ(head.num_bands, 2);
  EXPECT_EQ(head.bands[1], (kernels::Band{100, 130}));
  ASSERT_EQ(head.num_columns, 3);
  EXPECT_EQ(head.columns[2], 9);
  EXPECT_EQ(back->view().head(0).num_bands, 0);
}

}  // namespace
}  // namespace millrace::bench
