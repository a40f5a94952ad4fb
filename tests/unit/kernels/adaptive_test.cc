#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/operations.h"
#include "kernels/ref/operations.h"
#include "tests/unit/kernels/block_list_case.h"
#include "tests/unit/kernels/needle_layer.h"

namespace millrace::kernels {
namespace {

using testing::Contains;

AdaptiveParams params(EstimationCase& c, std::span<const RowTile> tiles,
                      std::span<const int32_t> heads, std::span<const float> gamma,
                      IndexStorage& index) {
  return {.q = c.rows(),
          .num_query_heads = c.shape().num_query_heads,
          .scale = c.scale(),
          .kv = c.kv(),
          .tiles = tiles,
          .heads = heads,
          .gamma = gamma,
          .index = index.view()};
}

HeadLists build(EstimationCase& c, float gamma, int64_t max_blocks = 1 << 20) {
  const std::vector<RowTile> tiles = tile_rows(c.shape().num_tokens);
  IndexStorage index(shape_for(c, static_cast<int64_t>(tiles.size()), max_blocks));
  const std::vector<int32_t> heads = {0};
  const std::vector<float> gammas = {gamma};
  cpu::build_adaptive(params(c, tiles, heads, gammas, index),
                      {.num_threads = 2, .simd = cpu::detect_simd()});
  EXPECT_TRUE(index.guards_intact());
  return index.lists(0);
}

size_t num_blocks(const HeadLists& lists) {
  size_t total = 0;
  for (size_t tile = 3; tile < lists.blocks.size(); ++tile) total += lists.blocks[tile].size();
  return total;
}

TEST(Adaptive, ListsAreThoseOfTheReference) {
  const std::vector<int32_t> heads = {3, 0, 2};
  const std::vector<float> gamma = {0.5F, 0.9F, 1.0F};
  const auto params_of = [&](EstimationCase& c, std::span<const RowTile> tiles,
                             IndexStorage& index) { return params(c, tiles, heads, gamma, index); };
  expect_lists_of_the_reference({1, 2, 66, 130, 1000, 1536}, heads, /*seed=*/32, params_of,
                                ref::build_adaptive, cpu::build_adaptive);
}

TEST(Adaptive, FollowsTheReferenceForAnyNumberOfRepresentatives) {
  EstimationCase c({.num_tokens = 777}, 33);
  const std::vector<RowTile> tiles = tile_rows(777);
  const std::vector<int32_t> heads = {0};
  const std::vector<float> gamma = {0.6F};
  for (const auto& [rows, keys] : std::vector<std::pair<int, int>>{
           {0, 0}, {0, 3}, {3, 0}, {8, 4}, {64, 64}, {100, 1}, {1, 100}}) {
    IndexStorage expected(shape_for(c, static_cast<int64_t>(tiles.size())));
    AdaptiveParams wanted = params(c, tiles, heads, gamma, expected);
    wanted.row_outliers = rows;
    wanted.page_outliers = keys;
    ref::build_adaptive(wanted);
    IndexStorage actual(shape_for(c, static_cast<int64_t>(tiles.size())));
    wanted.index = actual.view();
    cpu::build_adaptive(wanted, {.num_threads = 2, .simd = cpu::detect_simd()});
    EXPECT_EQ(actual.lists(0), expected.lists(0)) << rows << " rows, " << keys << " keys";
  }
}

TEST(Adaptive, ListsAreAscendingAndHoldTheForcedPages) {
  EstimationCase c({.num_tokens = 1920}, 34);
  scale_queries(c, 8.0F);  // a few pages hold most of the mass, so that lists are short
  const HeadLists lists = build(c, 0.3F);
  int num_lists = 0;
  for (int32_t tile = 3; tile < 30; ++tile) {
    const std::vector<int32_t>& list = lists.blocks[static_cast<size_t>(tile)];
    if (list.front() == kDenseTile) continue;
    ++num_lists;
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end(), std::less_equal<>()));
    EXPECT_EQ(list.front(), 0);
    EXPECT_EQ(list.back(), tile);
    EXPECT_THAT(list, Contains(tile - 1));
  }
  EXPECT_GT(num_lists, 15);
}

TEST(Adaptive, FirstThreeTilesHoldOnlyForcedPagesAndAreDense) {
  EstimationCase c({.num_tokens = 640}, 35);
  const HeadLists lists = build(c, 0.1F);
  for (size_t tile = 0; tile < 3; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

TEST(Adaptive, ATileWhoseListIsOverThreeQuartersOfItsPagesIsDense) {
  EstimationCase c({.num_tokens = 1920}, 38);
  scale_queries(c, 0.01F);  // nearly equal pages: as many as gamma of them
  const HeadLists fewer = build(c, 0.6F);
  const HeadLists more = build(c, 0.9F);
  for (size_t tile = 20; tile < 30; ++tile) {
    EXPECT_LE(4 * fewer.blocks[tile].size(), 3 * (tile + 1)) << tile;
    EXPECT_GE(2 * fewer.blocks[tile].size(), tile + 1) << tile;
    EXPECT_EQ(more.blocks[tile], std::vector<int32_t>{kDenseTile}) << tile;
  }
}

TEST(Index, LongestListsOfTilesOfShortAndLongPrompts) {
  EXPECT_EQ(most_listed_blocks(1), 0);
  EXPECT_EQ(most_listed_blocks(4), 3);
  EXPECT_EQ(most_listed_blocks(5), 3);
  EXPECT_EQ(most_listed_blocks(512), 384);
  EXPECT_EQ(most_listed_blocks(1024), 640);
}

TEST(Adaptive, GammaOneIsEverything) {
  EstimationCase c({.num_tokens = 1000}, 36);
  for (const auto& list : build(c, 1.0F).blocks) {
    EXPECT_EQ(list, std::vector<int32_t>{kDenseTile});
  }
}

TEST(Adaptive, TakesMoreWhereAttentionIsDiffuse) {
  EstimationCase sharp({.num_tokens = 2048}, 37);
  scale_queries(sharp, 32.0F);
  EstimationCase diffuse({.num_tokens = 2048}, 37);
  scale_queries(diffuse, 0.01F);
  const HeadLists few = build(sharp, 0.6F);
  const HeadLists many = build(diffuse, 0.6F);
  for (size_t tile = 20; tile < 32; ++tile) {
    const size_t num_pages = tile + 1;
    const bool all = many.blocks[tile].front() == kDenseTile;
    const size_t taken = all ? num_pages : many.blocks[tile].size();
    EXPECT_GT(taken, few.blocks[tile].size());
    EXPECT_GE(5 * taken, 3 * num_pages) << "of nearly equal pages, as many as of their mass";
  }
}

TEST(Adaptive, EqualPagesAreTakenFromTheFirst) {
  EstimationCase c({.num_tokens = 640}, 38);
  scale_queries(c, 0.0F);  // every page of 64 keys has the same mass
  // Of 10 pages 4 reach 0.35; the diagonal and its neighbour are forced.
  EXPECT_EQ(build(c, 0.35F).blocks.back(), (std::vector<int32_t>{0, 1, 2, 3, 8, 9}));
}

TEST(Adaptive, FindsNeedlesThatMeanPoolingMisses) {
  EstimationCase c = needle_layer(DType::kFloat32);
  const HeadLists adaptive = build(c, 0.8F);
  EXPECT_EQ(num_needles_found(adaptive), 8);

  const std::vector<RowTile> tiles = tile_rows(kNeedleTokens);
  IndexStorage pooled(shape_for(c, static_cast<int64_t>(tiles.size())));
  const std::vector<int32_t> heads = {0};
  const std::vector<int32_t> top_k = {5};
  cpu::build_block_sparse({.q = c.rows(),
                           .num_query_heads = 1,
                           .kv = c.kv(),
                           .tiles = tiles,
                           .heads = heads,
                           .top_k = top_k,
                           .index = pooled.view()},
                          {.num_threads = 1, .simd = cpu::detect_simd()});
  // Three pages of its choice out of some twenty: a needle now and then by luck.
  EXPECT_LE(num_needles_found(pooled.lists(0)), 3);
  EXPECT_LT(num_blocks(adaptive), num_blocks(pooled.lists(0))) << "and with fewer blocks";
}

TEST(Adaptive, FindsNeedlesByTheOutliersOfBothSides) {
  EstimationCase c = needle_layer(DType::kFloat32);
  const std::vector<RowTile> tiles = tile_rows(kNeedleTokens);
  const std::vector<int32_t> heads = {0};
  const std::vector<float> gamma = {0.8F};
  const auto found = [&](int32_t rows, int32_t keys) {
    IndexStorage index(shape_for(c, static_cast<int64_t>(tiles.size())));
    AdaptiveParams wanted = params(c, tiles, heads, gamma, index);
    wanted.row_outliers = rows;
    wanted.page_outliers = keys;
    cpu::build_adaptive(wanted, {.num_threads = 1, .simd = cpu::detect_simd()});
    return num_needles_found(index.lists(0));
  };
  EXPECT_EQ(found(1, 1), 8);
  EXPECT_LE(found(0, 1), 3);
}

TEST(Adaptive, TileWhoseListDoesNotFitIsDense) {
  EstimationCase c({.num_tokens = 1280}, 39);
  scale_queries(c, 4.0F);
  EXPECT_GT(expect_lists_that_fit(build(c, 0.3F, 30), build(c, 0.3F), 30), 0);
}

TEST(Adaptive, RanksWithTheirStripesAndHeadsFindWhatOneRankFinds) {
  EstimationCase c({.num_tokens = 3000, .num_query_heads = 4, .num_kv_heads = 2}, 40);
  const std::vector<RowTile> tiles = tile_rows(3000);
  const std::vector<int32_t> heads = c.all_heads();
  const std::vector<float> gamma(4, 0.6F);
  IndexStorage whole(shape_for(c, static_cast<int64_t>(tiles.size())));
  cpu::build_adaptive(params(c, tiles, heads, gamma, whole),
                      {.num_threads = 1, .simd = cpu::detect_simd()});
  for (const RankTiles& owned : ranks_of_two_and_four(3000)) {
    std::vector<std::byte> rows;
    const void* q = c.rows_of(owned.tiles, rows);
    for (const int32_t head : heads) {
      const std::vector<int32_t> one = {head};
      IndexStorage part(shape_for(c, static_cast<int64_t>(owned.tiles.size())));
      AdaptiveParams share = params(c, owned.tiles, one, std::span(gamma).first(1), part);
      share.q = q;
      cpu::build_adaptive(share, {.num_threads = 2, .simd = cpu::detect_simd()});
      expect_part_of_whole(part.lists(head), owned, whole.lists(head));
    }
  }
}

TEST(Adaptive, Avx2AndAvx512ChooseTheSamePages) {
  if (cpu::detect_simd() < cpu::SimdLevel::kAvx512) GTEST_SKIP() << "no AVX-512 here";
  EstimationCase c({.num_tokens = 8192, .head_dim = 128}, 41);
  const std::vector<RowTile> tiles = tile_rows(8192);
  const std::vector<int32_t> heads = {0};
  const std::vector<float> gamma = {0.7F};
  IndexStorage narrow(shape_for(c, 128));
  IndexStorage wide(shape_for(c, 128));
  cpu::build_adaptive(params(c, tiles, heads, gamma, narrow),
                      {.num_threads = 1, .simd = cpu::SimdLevel::kAvx2});
  cpu::build_adaptive(params(c, tiles, heads, gamma, wide),
                      {.num_threads = 1, .simd = cpu::SimdLevel::kAvx512});
  EXPECT_EQ(narrow.lists(0), wide.lists(0));
}

TEST(Adaptive, NotANumberMakesTilesDenseInsteadOfWrong) {
  EstimationCase c({.num_tokens = 640}, 42);
  c.k(0, 3 * 64 + 5, 2) = std::nanf("");
  const HeadLists lists = build(c, 0.5F);
  for (size_t tile = 3; tile < 10; ++tile) {
    EXPECT_EQ(lists.blocks[tile], std::vector<int32_t>{kDenseTile});
  }
}

TEST(AdaptiveDeathTest, RefusesTilesThatTheIndexHasNoRoomFor) {
  EstimationCase c({.num_tokens = 640}, 43);
  const std::vector<RowTile> tiles = tile_rows(640);
  const std::vector<int32_t> heads = {0};
  const std::vector<float> gamma = {0.5F};
  IndexStorage index(shape_for(c, 9));
  EXPECT_DEATH(cpu::build_adaptive(params(c, tiles, heads, gamma, index), {.num_threads = 1}),
               "10 row tiles, 9 in the index");
}

}  // namespace
}  // namespace millrace::kernels
