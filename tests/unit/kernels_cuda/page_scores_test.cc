#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/page_scores_case.h"
#include "tests/unit/kernels_cuda/device_index.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

class PageScores : public GpuCase {
 protected:
  Scores score(EstimationCase& c, const std::vector<int32_t>& heads, const IndexView& host_index,
               const std::vector<float>& lse, const std::vector<RowTile>& tiles) {
    const DeviceLayer layer(c);
    DeviceIndex index(host_index);
    const DeviceArray<float> device_lse(lse);
    DeviceArray<float> pages(std::ssize(heads) * num_pages_of(c));
    DeviceArray<float> recall(std::ssize(heads));
    const std::vector<int64_t> numbers = numbers_of(tiles);
    run([&](Context& context) {
      page_scores({.last = layer.last(),
                   .kv = layer.kv(),
                   .lse = device_lse.data(),
                   .heads = heads,
                   .index = index.view(),
                   .recall_tiles = tiles,
                   .recall_tile_numbers = numbers,
                   .page_scores = pages.data(),
                   .recall = recall.data()},
                  context);
    });
    EXPECT_TRUE(pages.guards_intact() && recall.guards_intact());
    return {pages.values(), recall.values()};
  }
};

class PageScoresIn : public PageScores, public testing::WithParamInterface<DType> {};
MR_INSTANTIATE_NARROW(PageScoresIn);

TEST_P(PageScoresIn, FollowTheReferenceUnderAnyIndex) {
  for (const int64_t num_tokens : {1, 63, 64, 65, 127, 130, 1000, 1024, 1025, 4099}) {
    SCOPED_TRACE(num_tokens);
    EstimationCase c({.num_tokens = num_tokens,
                      .num_query_heads = 6,
                      .num_kv_heads = 2,
                      .head_dim = num_tokens % 2 == 0 ? 64 : 128,
                      .dtype = GetParam()},
                     static_cast<uint64_t>(50 + num_tokens));
    std::vector<HeadLists> lists;
    for (uint64_t h = 0; h < 6; ++h) {
      lists.push_back(random_lists(70 + h, num_tokens, tile_rows(num_tokens)));
    }
    OwnedIndex index(lists);
    const std::vector<int32_t> heads = {5, 0, 3, 2};
    const auto lse = dense_lse(c, heads);
    const auto tiles = tiles_of_last_rows(c);
    const Scores expected = score_on_host(c, heads, index.view(), lse, tiles, ref::page_scores);
    const Scores actual = score(c, heads, index.view(), lse, tiles);
    // 64 x 64 terms of a page, each off by at most 2^-20 of itself: the score's rounding (its
    // magnitude is below 16) and that of the power of two. Scores are at most 1.
    EXPECT_TRUE(test::within(actual.pages, expected.pages, 1.0 / (1 << 18)));
    if (!tiles.empty()) {
      EXPECT_TRUE(test::within(actual.recall, expected.recall, 1.0 / (1 << 18)));
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
  OwnedIndex index(std::vector<HeadLists>(4, {.bands = {{0, 200}}, .columns = {3, 700}}));
  const auto tiles = tiles_of_last_rows(c);
  const auto all_lse = dense_lse(c, c.all_heads());
  const Scores all = score(c, c.all_heads(), index.view(), all_lse, tiles);
  const Scores again = score(c, c.all_heads(), index.view(), all_lse, tiles);
  EXPECT_TRUE(test::bitwise_equal(again.pages, all.pages));
  EXPECT_TRUE(test::bitwise_equal(again.recall, all.recall));
  for (const int32_t head : c.all_heads()) {
    const Scores one = score(c, {head}, index.view(), dense_lse(c, std::vector{head}), tiles);
    const auto pages = std::span(all.pages).subspan(static_cast<size_t>(head) * 40, 40);
    EXPECT_TRUE(test::bitwise_equal(one.pages, pages));
    EXPECT_EQ(one.recall[0], all.recall[static_cast<size_t>(head)]);
  }
}

TEST_F(PageScores, RecallIsLeftAloneWhenNoTileAsksForIt) {
  EstimationCase c({.num_tokens = 500, .head_dim = 64, .dtype = DType::kBFloat16}, 58);
  OwnedIndex index({dense_lists(500)});
  const auto scores = score(c, {0}, index.view(), dense_lse(c, std::vector{0}), {});
  EXPECT_TRUE(std::isnan(scores.recall[0]));
}

}  // namespace
}  // namespace millrace::kernels::cuda
