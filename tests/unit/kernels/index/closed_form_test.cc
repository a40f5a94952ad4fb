// SPDX-License-Identifier: Apache-2.0
#include "kernels/index/closed_form.h"

#include <gtest/gtest.h>

#include "kernels/index/coverage.h"
#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::kernels {
namespace {

HeadLists written(const ClosedForm& form, int64_t num_tokens, int32_t max_columns = 200) {
  IndexStorage index({.num_heads = 2, .max_bands = 1, .max_columns = max_columns});
  write_closed_form(form, num_tokens, 1, index.view());
  EXPECT_TRUE(index.guards_intact());
  return index.lists(1);
}

TEST(ClosedForm, DenseIsOneBandOfAllOffsets) {
  EXPECT_EQ(written(dense_form(1000), 1000), (HeadLists{.bands = {{0, 999}}}));
}

TEST(ClosedForm, AShapeIsAWindowAndTheSinkColumns) {
  EXPECT_EQ(written(a_shape_form(3, 128, 1000), 1000),
            (HeadLists{.bands = {{0, 127}}, .columns = {0, 1, 2}}));
}

TEST(ClosedForm, AShapeWiderThanThePromptIsDense) {
  EXPECT_EQ(written(a_shape_form(64, 4096, 70), 70), written(dense_form(70), 70));
}

TEST(ClosedForm, ElasticWindowGrowsWithThePromptBetweenAPageAndEverything) {
  EXPECT_EQ(elastic_form(256, 0.25, 4096).window, 256 + 1024);
  EXPECT_EQ(elastic_form(-2048, 0.125, 4096).window, kPageTokens);
  EXPECT_EQ(elastic_form(2048, 0.75, 4096).window, 4096);
  EXPECT_EQ(elastic_form(0, 0.1, 40).window, 40);
}

TEST(ClosedForm, ElasticHoldsTheFirstPageAndTheWindow) {
  const HeadLists lists = written(elastic_form(100, 0.0, 1000), 1000);
  ASSERT_EQ(lists.columns.size(), 64U);
  EXPECT_EQ(lists.columns.front(), 0);
  EXPECT_EQ(lists.columns.back(), 63);
  EXPECT_EQ(lists.bands, (std::vector<Band>{{0, 99}}));
}

TEST(ClosedForm, CoversTheWindowAndTheSinkOfEveryRow) {
  const int64_t num_tokens = 700;
  OwnedIndex index({written(a_shape_form(10, 100, num_tokens), num_tokens)});
  TileCoverage coverage;
  for (const RowTile& tile : tile_rows(num_tokens)) {
    tile_coverage(index.view().head(0), tile, 0, /*dense=*/false, coverage);
    ASSERT_EQ(coverage.ranges.size(), 1U);
    EXPECT_EQ(coverage.ranges[0].begin, std::max<int64_t>(tile.position - 99, 0));
    EXPECT_EQ(coverage.ranges[0].end, tile.position + tile.num_rows);
    EXPECT_EQ(coverage.columns.size(),
              static_cast<size_t>(std::min<int64_t>(coverage.ranges[0].begin, 10)));
  }
}

TEST(ClosedForm, ClearHeadEmptiesEveryListAndNoOtherHead) {
  IndexStorage index(
      {.num_heads = 2, .max_bands = 1, .max_columns = 4, .num_tiles = 3, .max_blocks = 8});
  write_closed_form(a_shape_form(4, 64, 1000), 1000, 0, index.view());
  write_closed_form(a_shape_form(4, 64, 1000), 1000, 1, index.view());
  index.view().block_count[1] = kDenseTile;
  clear_head(0, index.view());
  EXPECT_EQ(index.lists(0), (HeadLists{.blocks = {{}, {}, {}}}));
  EXPECT_EQ(index.lists(1).columns.size(), 4U);
  EXPECT_TRUE(index.guards_intact());
}

TEST(ClosedFormDeathTest, RefusesMoreColumnsThanThereIsRoomFor) {
  EXPECT_DEATH(written(a_shape_form(5, 64, 1000), 1000, /*max_columns=*/4),
               "5 columns into 1 and 4");
}

}  // namespace
}  // namespace millrace::kernels
